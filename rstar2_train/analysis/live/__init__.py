"""The live view of `rstar2 view`: a page on 127.0.0.1 that follows a running job by the files that the job stores.

    cli/view ──> server ──GET──> job ──new files──> table ──> rows of the viewer
                   │              └───journal─────> curves ──> figures per step
                   └──> the page: viewer.html.jinja, live.js, and viewer.js of `rstar2 analyse`

The job does nothing for it and does not notice it: the view only reads the state directory.

Modules:

- `server`: answers the requests of one browser page; rejects other hosts and a missing token.
- `job`: finds new trajectory files and metrics since the last request, reads one trajectory, searches.
- `table`: reads the columns of the viewer's table from a trajectory file, without Python objects per token.
- `curves`: the figures that the page draws, from the events of the tracking journal.

`vendor` has uPlot, which draws the curves in the browser.
"""
