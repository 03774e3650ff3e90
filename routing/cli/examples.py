"""An example of every verb, which `--help` ends with and docs/commands.md shows."""

import typer

EXAMPLES = {
    "allowance": "routing allowance --ep 8 --batch-tokens 200k --for megatron-core",
    "check": "routing check runs/demo/allowances.yaml runs/demo-trained runs/demo-untrained",
    "doctor": "routing doctor",
    "estimate": "routing estimate runs/wave.yaml --budget-gb 60",
    "explain": "routing explain allowances.yaml --wave runs/wave.yaml",
    "fit": "routing fit runs/demo-trained runs/demo-untrained --batch-tokens 50k,20k,2k --out runs/demo/allowances.yaml",
    "imbalance": "routing imbalance runs/demo-trained --ep 8 --batch-tokens 20k --by layer --json",
    "import counts": "routing import counts counts.csv --num-tokens 2048 --top-k 8 --out runs/recorded",
    "import routes": "routing import routes routes.jsonl --model checkpoint/config.json --out runs/recorded",
    "measure": "routing measure data/demo/policy data/demo/trajectories/shop.jsonl --out runs/demo-trained --plan",
    "placement suggest": "routing placement suggest runs/demo-trained --ep 8 --batch-tokens 2k --out runs/placement.json",
    "refresh": "routing refresh pipelines/retail.yaml --markdown -",
    "repair": "routing repair runs/demo-trained --dry-run",
    "replay": "routing replay runs/wave.yaml --recorded runs/estimate.json",
    "report": "routing report runs/demo-trained --allowances runs/demo/allowances.yaml --out runs/demo/report.html",
    "show": "routing show runs/demo-trained --json",
    "sql": 'routing sql runs/demo-trained "SELECT ep, MAX(imbalance) FROM imbalance GROUP BY ep"',
    "verify": "routing verify runs/demo-trained runs/demo-untrained",
    "wave": "routing wave --lengths runs/demo-trained --ep 2 --cp 2 --model qwen3.6-35b-a3b > runs/wave.yaml",
}
_AS_IT_STANDS = "\b\n"  # the help's own line breaks would cut a command


def add_examples(app: typer.Typer, *, group: str = "") -> None:
    """Ends the help of every verb of `app` with its example; KeyError for a verb that has none."""
    for verb in app.registered_commands:
        assert verb.callback is not None
        name = f"{group}{verb.name or verb.callback.__name__}"
        verb.epilog = f"{_AS_IT_STANDS}Example:\n  {EXAMPLES[name]}"
    for inner in app.registered_groups:
        assert inner.typer_instance is not None
        name = str(inner.name or inner.typer_instance.info.name)
        add_examples(inner.typer_instance, group=f"{group}{name} ")
