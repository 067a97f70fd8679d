/* Who owns a log on files: the lock file of eventlog/files/lock.py.

   LOCK holds the epoch. Each epoch has a byte that its owner locks; the kernel drops a dead owner's
   locks. A claim locks bytes E and E + 1 and writes E + 1; a takeover goes on though E is locked. An
   owner appends one record, flushes, reads LOCK, and acknowledges. The next owner reads the segments
   of those before it: what they write later does not count. A process may die at any time.

   Each guard can be removed, by a -D: test_models.py says which property fails then. */

#define PROCESSES 3
#define EPOCHS (PROCESSES + 2)

byte content;                   /* the epoch in LOCK */
byte holder[EPOCHS + 1];        /* of each lockable byte; 0: none */
bool used[EPOCHS + 1], written[EPOCHS + 1], over[EPOCHS + 1], counts[EPOCHS + 1];
byte gone;                      /* processes that have ended */
hidden byte n;

inline read_segments() {        /* of earlier owners, before anything is appended */
    d_step {
        n = 1;
        do
        :: n < me -> counts[n] = (over[n] -> counts[n] : written[n]); over[n] = true; n++
        :: else -> break
        od
    }
}

inline dies() {
    if
    :: !last -> goto dead
    :: true
    fi
}

proctype Process(byte id; bool last) {
    byte old, me;
    !last || gone == PROCESSES;
again:
    old = content;
    if
    :: atomic { holder[old] == 0 -> holder[old] = id }
    :: holder[old] != 0 && !last                        /* takeover */
    :: holder[old] != 0 -> assert(!last); goto dead     /* CLAIMABLE: no one has it for ever */
    fi;
    dies();
    me = old + 1;
#ifndef NO_NEXT_LOCK
    if
    :: atomic { holder[me] == 0 -> holder[me] = id }
    :: holder[me] != 0 -> assert(!last); goto dead
    fi;
#endif
#ifndef NO_REREAD
    if
    :: content > old ->                 /* an owner came and went in between */
        atomic { if :: holder[old] == id -> holder[old] = 0 :: else fi };
        atomic { if :: holder[me] == id -> holder[me] = 0 :: else fi };
        goto again
    :: else
    fi;
#endif
    dies();
#ifdef READ_FIRST
    read_segments();
#endif
    atomic { content = me; assert(!used[me]); used[me] = true };    /* UNIQUE: one owner an epoch */
#ifndef READ_FIRST
    read_segments();
#endif
    dies();
#ifdef CHECK_FIRST
    if :: content == me :: else -> goto dead fi;
#endif
    written[me] = true;
    dies();
    if
#if defined(NO_CHECK) || defined(CHECK_FIRST)
    :: true ->
#else
    :: content == me ->
#endif
        assert(!over[me] || counts[me])                 /* LOST: it acknowledges what does not count */
    :: else                                             /* fenced */
    fi;
dead:
    atomic {
#ifndef NO_KERNEL
        n = 0;
        do
        :: n <= EPOCHS -> holder[n] = (holder[n] == id -> 0 : holder[n]); n++
        :: else -> break
        od;
#endif
        gone++
    }
}

init {
    atomic {
        for (n : 1 .. PROCESSES) { run Process(n, false) }
        run Process(PROCESSES + 1, true)
    }
}
