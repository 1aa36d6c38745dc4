"""Work over many replicas: each has a session of its own, and the results are those of one machine.

```
 rows ──► Dispatcher ── Take, GiveBack, Stop ──► Link ══════► Replica: session.run, as many rows as its plan says
          who has which row                      process or      │
 done ◄── ClusterRun ◄─ Ready, Begun, Done … ─── Ray actor ◄─────┘
```

Open `fleet.py` first: it starts replicas, as many as there is work for, hears them and replaces those that are lost.
What they do is rows, of `cluster_run.py`, which calls `done` once for every row; or requests to a server, in
`qpdsl/serve/replicas`. `dispatcher.py` decides what rows are sent to whom, and which are better run together;
`row_scheduler.py` who gets which row. Neither has a clock or a process, so a simulation runs the same code.
`cluster_address.py` reads what `--cluster` names. `replica/` is what runs at the other end, `backends/` how it is
started.

What must hold: a row is given to one replica at a time, and its outcome counts only while that replica has it, so it is
done once whatever is lost. No result depends on who ran a row, since replicas that could differ in bits are refused.
"""
