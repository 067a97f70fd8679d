/* Who owns a run, on a store with leases: claim, append, takeover, effect, release, crash, restart.

   One run makes one call: an intent, an effect outside, an outcome. LIVES workers claim it, and then
   the Rescuer does, who has to finish it. A worker that takes no step for a while is stopped, or has
   crashed. A lease may expire at any time. An operator claims the run and releases it at once.

   Each guard can be removed, by a -D: tests/ownership/test_models.py says which property fails then.
   -DTIMELY: a tool ends within its time-out, and the sink compares no fences. */

#ifndef LIVES
#define LIVES 2
#endif
#ifndef UNKNOWNS
#define UNKNOWNS 1       /* appends whose answer does not come */
#define RESTARTS 1       /* of the server: what is not flushed is lost */
#endif
#define OWNERS (LIVES + 1)
#define RECORDS (3 * OWNERS)

mtype = { OPENED, INTENT, OUTCOME, NONE, OK, REFUSED, UNKNOWN };

/* The row of the run. */
bool leased;
byte epoch, locked, claims;
bool former;            /* a lease of an earlier owner has expired, so that one may be alive */
bool busy;              /* an append that is not flushed yet locks the row */

mtype kind[RECORDS];    /* the log: each record has a kind and the epoch of its writer, */
byte by[RECORDS];
bool alive[RECORDS];    /* and OPENED says whether an earlier owner may be alive */
byte length, flushed, acknowledged;

mtype late = NONE;      /* a request whose sender has given up waiting for the answer */
byte late_by, late_at;
bool late_alive;

byte unknowns = UNKNOWNS, restarts = RESTARTS, restarted;
byte over;              /* up to this owner: its call's time-out has passed since it lost the run */
byte highest, effects;  /* at the sink */
hidden byte n;

inline add(what, who, flag) {   /* each property of the log is checked here */
    assert(who >= epoch);       /* STALE: a record of a former owner is accepted */
    n = 0;
    do
    :: n < length -> assert(kind[n] != what || by[n] != who); n++       /* TWICE */
    :: else -> break
    od;
    kind[length] = what; by[length] = who; alive[length] = flag;
    length++
}

#ifdef NO_EPOCH
#define IS_OWNER(who) true
#else
#define IS_OWNER(who) (who == epoch)
#endif
#ifdef NO_NEXT
#define IS_NEXT(at) true
#else
#define IS_NEXT(at) (at == length)
#endif
#define IS_MINE(what) (at < length && kind[at] == what && by[at] == me)

inline write(what, flag) {
    at = length_seen; got = NONE;
    do
    :: atomic {
            got == NONE && unknowns > 0 && late == NONE ->
            unknowns--;
            late = what; late_by = me; late_at = at; late_alive = flag;
            got = UNKNOWN
        }
    :: got == NONE ->
        atomic {
            !busy;
            if
            :: IS_OWNER(me) && IS_NEXT(at) -> add(what, me, flag); busy = true; seen = restarted
            :: else -> got = REFUSED
            fi
        }
        if
        :: got == REFUSED
        :: else -> atomic {
            if
            :: seen == restarted -> got = OK; busy = false; acknowledged = length;
#ifndef NO_FLUSH
               flushed = length
#endif
            :: else -> got = UNKNOWN
            fi }
        fi
    :: got == UNKNOWN ->
#ifdef NO_RESOLVE
        got = OK
#else
        atomic { !busy; if :: IS_MINE(what) -> got = OK :: else -> got = NONE fi }
#endif
    :: got == REFUSED ->
        atomic { !busy; if :: IS_MINE(what) -> got = OK :: else -> break fi }
    :: got == OK -> length_seen = at + 1; break
    od;
    if :: got == REFUSED -> goto lost :: else -> got = NONE; seen = 0 fi
}

inline examine() {      /* what the log says of the call */
    atomic {
        !busy;
        n = 0; at = 0; got = NONE; seen = 0; begun = 0; done = false; may_live = false; judged = false;
        do
        :: n < length ->
            if
            :: kind[n] == INTENT -> begun = by[n]; judged = false; may_live = false
            :: kind[n] == OUTCOME -> done = true
            :: kind[n] == OPENED && !judged && begun > 0 && by[n] > begun ->
                judged = true; may_live = alive[n]
            :: else
            fi;
            n++
        :: else -> break
        od
    }
}

proctype Worker(bool rescues) {
    byte me, at, length_seen, begun, seen;
    mtype got;
    bool done, may_live, judged, told;

    !rescues || claims == LIVES;
#ifdef TWO_STATEMENTS
    atomic { locked == epoch -> locked++; claims++ };
    if :: !rescues -> goto dead :: true fi;             /* it crashes between the two */
#endif
    atomic {
        !busy;
#ifdef NO_STICKY
        former = leased;
#else
        former = former || leased;
#endif
#ifndef TWO_STATEMENTS
        claims++;
#endif
        epoch++; locked = epoch; me = epoch; leased = true; told = former; length_seen = length
    }
    if :: !rescues -> goto release :: true fi;  /* an operator, who only looks */
    write(OPENED, told);
    examine();
    if :: done -> goto release :: else fi;
    if
    :: begun > 0 && effects > 0 -> goto outcome         /* the hook finds it */
    :: begun > 0 && effects == 0 && may_live ->         /* not there */
#ifndef NO_WAIT
        over >= begun;
#endif
        if :: effects > 0 -> goto outcome :: else fi
    :: else
    fi;
    write(INTENT, false);
    atomic {
        if
#ifdef TIMELY
        :: over >= me -> goto lost
#elif !defined(NO_COMPARE)
        :: me < highest -> goto lost
#endif
        :: else ->
#ifndef SKIP_INTENT
            assert(at < flushed && kind[at] == INTENT && by[at] == me); /* INTENT: not durable */
#endif
            effects++;
#ifdef TIMELY
            assert(effects == 1);                                       /* ONCE */
#else
            assert(me >= highest); highest = me                         /* FENCE: after a newer one */
#endif
        fi
    }
outcome:
    write(OUTCOME, false);
release:
    atomic { if :: epoch == me -> leased = false :: else fi };
    examine();
lost:
dead:
    skip;
#ifndef SKIP_FINISHED
    assert(!rescues || done)            /* FINISHED; and it never waits for ever: see TWO_STATEMENTS */
#endif
}

proctype World() {      /* time, the network and the server */
end:
    do
    :: atomic { over + 1 < epoch -> over++ }
    :: atomic { late != NONE -> late = NONE }
    :: atomic { late != NONE && !busy ->
        if
        :: IS_OWNER(late_by) && IS_NEXT(late_at) -> add(late, late_by, late_alive); flushed = length
        :: else
        fi;
        late = NONE }
    :: atomic { restarts > 0 ->
        restarts--; restarted++; length = flushed; late = NONE; busy = false;
        assert(acknowledged <= length) }                                /* LOST */
    od
}

init {
    atomic {
        for (n : 1 .. LIVES) { run Worker(false) }
        run Worker(true);
        run World()
    }
}
