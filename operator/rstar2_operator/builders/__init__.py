"""Pure builders of Kubernetes objects: one file a role. A job, what it needs, and the site's settings in; dicts out."""
