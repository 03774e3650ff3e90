"""What `from routing import ...` hands out, and where each name lives; nothing is imported before it is asked for.

Importing `routing`, pricing a wave and guarding a training loop need the standard library alone; reading a table or a run
imports what that needs.
"""

NAMES = {
    "AllowanceGuard": "routing.guard.watch",
    "AllowanceTable": "routing.core.allowance",
    "CheckFailedError": "routing.core.errors",
    "DamagedDataError": "routing.core.errors",
    "DecoderShape": "routing.core.layers",
    "Estimate": "routing.estimate.result",
    "Estimator": "routing.stages.estimator",
    "InputError": "routing.core.errors",
    "ModelShape": "routing.core.shapes",
    "RoutingError": "routing.core.errors",
    "Run": "routing.stages.frames",
    "StorageError": "routing.core.errors",
    "Topology": "routing.core.wave",
    "Wave": "routing.core.wave",
    "fit": "routing.stages.frames",
    "open_run": "routing.stages.frames",
    "read_table": "routing.store.allowances",
    "read_wave": "routing.store.waves",
}
