"""Builds the documentation site: `make docs`.

- `hooks.py`: the hooks of MkDocs; adds pages for files outside `docs/` and fails on anything that needs a network.
- `repository.py`: links from a page into the repository, and the paths and symbols that a page names.
- `manifest_page.py`: writes `docs/manifest.md` from the models in `rstar2_train/api`.

    mkdocs.yml ──> hooks.py ──> repository.py
    make crds  ──> manifest_page.py ──> rstar2_train.api
"""
