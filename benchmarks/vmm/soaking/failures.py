# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Every way in which the failing driver can fail, as texts of its language.

`{seed}` is filled in. All but `lost` stop after some failures, so that a later success can be asked
for.
"""

from __future__ import annotations

NONE = "none"
LOST = "lost"

MODES: dict[str, str] = {
    NONE: "",
    "create, nth": "create@7:oom;create@20..40:oom",
    "create, invalid": "create@p=0.1,seed={seed}:invalid*60",
    "create, over a size": "create@over=3MiB:oom*400",
    "release": "release@p=0.2,seed={seed}:invalid*60",
    "map": "map@p=0.02,seed={seed}:invalid*60",
    "map, out of memory": "map@p=0.02,seed={seed}:oom*60",
    "unmap": "unmap@p=0.05,seed={seed}:invalid*60",
    "unmap, the last": "unmap@last:perm*20",
    "map and unmap": "map@p=0.03,seed={seed}:invalid*60;unmap@p=0.2,seed={seed}:perm*60",
    "set_access": "set_access@p=0.05,seed={seed}:perm*60",
    "access and undo": "set_access@p=0.1,seed={seed}:perm*60;map@p=0.05,seed={seed}:invalid*60",
    "reserve": "reserve@2..4:oom;reserve@p=0.2,seed={seed}:invalid*20",
    "va_free": "va_free@p=0.5,seed={seed}:invalid*20",
    "memory_info": "memory_info@p=0.3,seed={seed}:invalid*60",
    "event_create": "event_create@p=0.2,seed={seed}:oom*60",
    "event_record": "event_record@p=0.1,seed={seed}:invalid*60",
    "event_query": "event_query@p=0.5,seed={seed}:notready*400",
    "event_query, invalid": "event_query@p=0.1,seed={seed}:invalid*60",
    "event_sync": "event_sync@p=0.3,seed={seed}:invalid*60",
    "stream_wait": "stream_wait@p=0.2,seed={seed}:invalid*60",
    "device_sync": "device_sync@p=0.3,seed={seed}:invalid*60",
    "copies": "copy_out@p=0.3,seed={seed}:invalid*20;copy_in@p=0.3,seed={seed}:invalid*20",
    "anything": "any@p=0.01,seed={seed}:invalid*200",
    LOST: "any@1500:lost",
}

# Modes whose failures may lose the content of a pool that sleeps or wakes: the interface says so.
MAY_LOSE_SLEEPERS = {"copies", "anything", "map and unmap", "access and undo", LOST}
