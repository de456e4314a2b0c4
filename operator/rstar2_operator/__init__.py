"""The rStar2 operator: reconciles AgenticRLJobs into the pods, services and claims that train them."""
