"""The exceptions of the whole program, drawn at the top of the lowest layer.

GraftError                 one line for a person; the command line prints it and exits with status 2
├── SpaceError             a space file, or a value given by --set, breaks a rule of the language
├── SamplerError           a sampler, perhaps a plug-in, raised an error instead of choosing a trial
├── PluginError            a plug-in is unknown, or one of its fields has a value outside its rule
├── StorageError           the database cannot be opened, is locked, too new, or out of space
│   └── RowError           one of its rows was edited by hand
├── StudyError             a study does not exist, exists already, or is being run by someone else
│   ├── AccessError        it is another person's
│   ├── ChangedError       its space was changed just before it was to run
│   └── MessageError       a request to the queue that no process can do
└── ClusterError           the Ray cluster of a launch or a service is gone; studies can be resumed
"""

from __future__ import annotations


class GraftError(Exception):
    """An error whose text is one line that names the value, the rule and the choices."""


class SpaceError(GraftError):
    """A rule of the space language is broken; the text starts with the file and the line."""


class SamplerError(GraftError):
    """A sampler raised an error of its own; the space is not at fault."""


class PluginError(GraftError):
    """A plug-in does not exist, or one of its fields breaks its rule."""


class StorageError(GraftError):
    """The database cannot be used as asked; what was committed before stays."""


class RowError(StorageError):
    """A row is not what Graft writes, perhaps edited by hand; the others can be used."""


class StudyError(GraftError):
    """The named study is missing, exists already, or belongs to a running controller."""


class AccessError(StudyError):
    """The study is another person's, or the token of the person who asks was revoked."""


class ChangedError(StudyError):
    """The study's space was changed after it was read and before control of the study was taken."""


class MessageError(StudyError):
    """A request to the queue cannot be read, or holds a value that no table takes."""


class ClusterError(GraftError):
    """The cluster that studies train on is gone; they have stopped with everything kept."""
