"""The exit codes by which launchers and cluster scripts decide what to do next: 0 is done,
1 anything not named here.
"""

EXIT_USAGE_ERROR = 2
EXIT_DIVERGED = 3
EXIT_STOPPED = 75  # by a signal, after saving: sysexits.h calls it a temporary failure
# Only of a process that jaxdp supervises, which this environment variable says; otherwise 2.
EXIT_LOCKED = 73  # another process writes the run folder: sysexits.h calls it "cannot create"
SUPERVISED = "JAXDP_SUPERVISED"
