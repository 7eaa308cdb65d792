"""The process that checks of submissions are forked from: it has imported all, and checked a space.

Nothing here may start a thread, which a fork would not have.
"""

import os
from contextlib import suppress

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

from graft.web.settings import Quotas
from graft.web.submissions import Submitted, read_submission
from spaces.errors import GraftError
from spaces.reading import catalogue

with suppress(GraftError):  # a check of a submission would say what is wrong
    space = catalogue.read_text("quick/set_complement")
    read_submission(Submitted(text=space, name=None, quotas=Quotas()))
