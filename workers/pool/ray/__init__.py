"""Workers on a Ray cluster."""

import os

# What Ray reads when it is imported, which only modules below this one do.
# A cluster runs what it is sent, so that both ends must have its token, or RAY_AUTH_MODE=disabled.
os.environ.setdefault("RAY_AUTH_MODE", "token")
# Tune's thread may outlive an error: it would start a second cluster after our shutdown.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
