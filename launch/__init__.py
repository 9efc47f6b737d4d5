"""Studies: sets of runs (seeds, grids), what of them is missing, and running them here or on a cluster."""

from geomano_hpc.launch.study import PlannedRun, Study, load_study, plan, study_names, with_overrides

__all__ = ["PlannedRun", "Study", "load_study", "plan", "study_names", "with_overrides"]
