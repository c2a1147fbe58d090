# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Every error code and what it means, as data. docs/flexckpt_errors.md is generated from it."""

CODES: dict[str, str] = {
    # AOA1xx: the text is not a program.
    "AOA101": "A character cannot start or continue anything of the language.",
    "AOA102": "A statement is malformed.",
    "AOA103": "An attribute is unknown, repeated, or does not fit the form of the statement.",
    "AOA104": "The value of an attribute has the wrong type or range.",
    # AOA2xx: a macro cannot be expanded.
    "AOA201": "A placeholder or star matches no tensor.",
    "AOA202": "The names of one statement do not agree in their placeholders.",
    "AOA203": "A macro is used with operands it does not take.",
    "AOA204": "The number of parts of a fused tensor is ambiguous; state tp=.",
    # AOA3xx: the program does not fit the tensors.
    "AOA301": "A name is neither a tensor of the source nor a variable written before.",
    "AOA302": "The shapes of the operands do not fit the operation.",
    "AOA303": "The dtypes do not fit and no cast says so.",
    "AOA304": "A destination has another shape than the variable assigned to it.",
    "AOA305": "A destination is assigned twice in a way that loses a tensor.",
    "AOA306": "A destination has no source.",
    "AOA307": "A deleted tensor is used.",
    "AOA308": "A tensor of the source is used by nothing.",
    # AOA4xx: the inverse does not exist.
    "AOA401": "The program cannot be inverted.",
    # ARG1xx: arguments.
    "ARG101": "An argument of a function has a value that it does not take.",
    # CKP1xx: files.
    "CKP101": "There is no checkpoint of a known layout at this path.",
    "CKP102": "A file of the checkpoint is missing.",
    "CKP103": "A file of the checkpoint is damaged or truncated.",
    "CKP104": "The checkpoint was not committed.",
    "CKP105": "A pickle asks for something that is not data.",
    "CKP106": "A path in an index leaves the folder of the checkpoint.",
    "CKP107": "A checksum does not match.",
    "CKP108": "The checkpoint could not be written; nothing was changed.",
    "CKP109": "The layout or a version of it is not supported.",
    # CKP2xx: contents.
    "CKP201": "The stored shards do not cover a tensor exactly.",
    "CKP202": "The stored shards of a tensor contradict one another.",
    "CKP203": "A per-parameter scalar differs between the sources that are merged.",
    # LAY1xx: layouts and targets.
    "LAY101": "A shard lies outside its global tensor.",
    "LAY102": "A shard and its tensor do not fit.",
    "LAY103": "The dtype of a target differs from that of its source.",
    "LAY104": "A value is not a tensor.",
    "LAY105": "The shards of the ranks contradict one another.",
    "LAY106": "A placement is not supported.",
    "LAY107": "A rule of a layout is missing, ambiguous or does not fit a tensor.",
    # NET1xx: several processes.
    "NET101": "Another rank failed.",
    "NET102": "The ranks were called with different arguments.",
    "NET103": "No rank of the job sees a file that is needed.",
    "NET104": "The exchange ran past its time limit.",
    # INT1xx: other packages.
    "INT101": "An optional package is missing.",
    "INT102": "An object of another package is in a state that flexckpt cannot serve.",
}
