"""Small plug-in families with every kind of field, so that tests of the language need neither torch nor Optuna."""

from tests.support.fake_plugins.averagings import Averaging
from tests.support.fake_plugins.learnings import Learning
from tests.support.fake_plugins.models import Model
from tests.support.fake_plugins.optimizers import Optimizer
from tests.support.fake_plugins.samplers import Sampler
from tests.support.fake_plugins.stoppings import Stopping
from tests.support.fake_plugins.tasks import Task

FAMILIES = {
    "task": Task,
    "model": Model,
    "optimizer": Optimizer,
    "averaging": Averaging,
    "learning": Learning,
    "sampler": Sampler,
    "stopping": Stopping,
}
