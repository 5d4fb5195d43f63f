"""The ``[model]`` section of an experiment."""

import re
from typing import Annotated

from lottery.models import networks
from lottery.settings import Section, is_given, one_of


def _is_known(name: str) -> bool:
    return is_given(name) or bool(re.fullmatch(r"[\w.]+:\w+", name)) or networks.is_built_in(name)


class Model(Section):
    """The network: a built-in name, or "package.module:function"."""

    name: Annotated[
        str, one_of("model.name", networks.MODELS, also=_is_known, hint=' (or "package.module:function")')
    ] = "lenet_300_100"
    fingerprint: str = ""
