"""Analysis of a job's stored trajectories: the report, the plots and the viewer of `rstar2 analyse`.

    cli/analyse ──> analyse ──1. select──> sources: files, groups for the viewer, trajectories to score
                       │
                       ├──2. read each file once──> gather ──┬──> figures: metrics of the file
                       │                                     ├──> score: entropies by a model
                       │                                     ├──> tokens ──> study: uncertain tokens
                       │                                     ├──> roc: rollouts per selection reason
                       │                                     └──> viewer: data of the viewer
                       │
                       └──3. write──> pages ──> index.html, viewer.html, summary.json; figures ──> *.svg

Modules:

- `analyse`: the three steps, and the atomic replacement of an older analysis.
- `sources`: finds the trajectory files, and selects groups and samples.
- `gather`: reads each file once for all figures.
- `figures`: metrics per file, and their plots.
- `tokens`: text, region and uncertainty of each token.
- `study`: the paper's entropy study as figures.
- `score`: token entropies by a forward pass of a model.
- `roc`: counts and explains the results of Resample-on-Correct.
- `viewer`: writes the data files of the viewer.
- `pages`: writes the HTML pages and `summary.json`.
- `live`: the page of `rstar2 view`, which follows a running job.

`index.html.jinja`, `viewer.html.jinja`, `viewer.js`, `trajectory.js` and `style.css` are the pages.
"""
