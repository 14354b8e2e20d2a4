"""Records a golden from your checkpoint: what openpi (or LeRobot) itself computes from your observations.

Run it with the Python of the environment that your policy runs in, then judge the engine by the file:

  openpi verify --checkpoint pi05_droid golden.safetensors

Recorded are the prepared inputs, the noise, the actions in fp32 and in bf16, every stage between, and the
robot's actions. Nothing leaves this machine, and no weight is copied into the file.
"""

import argparse
import pathlib
import sys
import time

sys.dont_write_bytecode = True

EXAMPLES = """examples:
  # openpi: a PyTorch checkpoint, four made-up observations of its robot
  uv run python ~/openpi.c/tools/record-golden --config pi05_droid --checkpoint checkpoints/pi05_droid \\
      --example --out golden.safetensors

  # openpi: your own observations, saved with
  # np.savez("obs.npz", **{"observation/image": [n,h,w,3], ..., "prompt": [n texts]})
  uv run python ~/openpi.c/tools/record-golden --config pi0_libero --checkpoint ckpt \\
      --observations obs.npz --out golden.safetensors

  # LeRobot: a folder that save_pretrained wrote
  python ~/openpi.c/tools/record-golden --policy outputs/pi05/pretrained_model --example --out golden.safetensors

  # on a GPU, ten observations, other noise
  python ~/openpi.c/tools/record-golden --policy pi0_folding --observations obs.npz --count 10 --seed 3 \\
      --device cuda --out golden.safetensors
"""


def parse_options(argv):
    def whole(low):
        def read(text):
            value = int(text)
            if value < low:
                raise argparse.ArgumentTypeError(f"{text} is below {low}")
            return value

        return read

    parser = argparse.ArgumentParser(
        prog="record-golden",
        description=__doc__,
        epilog=EXAMPLES,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_argument_group("what is recorded")
    what.add_argument(
        "--config", metavar="NAME", help="openpi's training config, for example pi05_droid; with --checkpoint"
    )
    what.add_argument(
        "--checkpoint", metavar="DIR", help="openpi's checkpoint folder with model.safetensors and assets/"
    )
    what.add_argument(
        "--policy", metavar="DIR", help="LeRobot's folder with model.safetensors, config.json and processors"
    )
    what.add_argument(
        "--observations",
        metavar="FILE",
        help=".npz: each array with the observation as its first axis; .msgpack: one map after another, as "
        "openpi-client packs them; .mcap: a recording of `openpi serve --record`, evenly out of all calls. Keys are those that your client sends; ALOHA's pictures in a .npz are "
        "images/NAME, LeRobot's keys observation.images.NAME, observation.state and task",
    )
    what.add_argument(
        "--example", action="store_true", help="made-up observations of the config's robot instead"
    )
    what.add_argument(
        "--count",
        metavar="N",
        type=whole(1),
        help="observations (default: 4 made up, or the file's, at most 64)",
    )
    what.add_argument(
        "--steps", metavar="N", type=whole(1), help="denoising steps (default: the policy's, 10)"
    )
    what.add_argument(
        "--seed", metavar="N", type=whole(0), default=0, help="of noise and made-up observations (default: 0)"
    )
    what.add_argument(
        "--no-stages",
        dest="stages",
        action="store_false",
        help="keep only inputs and actions: a smaller file, but a failure cannot be placed",
    )
    what.add_argument(
        "--no-bf16",
        dest="bf16",
        action="store_false",
        help="do not also run the model in bf16; verify then judges f32 only",
    )
    parser.add_argument(
        "--device", metavar="NAME", default="cpu", help="torch's device (default: cpu; fp32 needs 14 GB)"
    )
    parser.add_argument("--out", metavar="FILE", required=True, help="the golden, a .safetensors file")
    args = parser.parse_args(argv)
    if bool(args.policy) == bool(args.config or args.checkpoint):
        parser.error("give --config and --checkpoint (openpi), or --policy (LeRobot)")
    if not args.policy and not (args.config and args.checkpoint):
        parser.error("--config and --checkpoint go together")
    if bool(args.observations) == args.example:
        parser.error("give --observations FILE or --example")
    if not args.out.endswith(".safetensors"):
        parser.error(f"--out {args.out}: the name must end in .safetensors")
    return args


def open_source(args):
    if args.policy:
        import from_lerobot

        return from_lerobot.Source(args.policy, args.device, args.steps)
    import from_openpi

    return from_openpi.Source(args.config, args.checkpoint, args.device, args.steps)


def say(text):
    print(text, file=sys.stderr, flush=True)


def record(args, source):
    """source: see from_openpi.Source."""
    import golden
    import numpy as np
    import observations

    rng = np.random.default_rng([args.seed, 1])
    if args.example:
        given = [source.example(rng, i) for i in range(min(args.count or 4, 64))]
    else:
        given = observations.read(args.observations, min(args.count or 64, 64))
        if len(given) < (args.count or 1):
            raise golden.Problem(
                f"{args.observations}: {len(given)} observations, --count asks for {args.count}"
            )
    noise = (
        np.random.default_rng([args.seed, 2])
        .standard_normal((len(given), source.horizon, 32))
        .astype(np.float32)
    )
    out = golden.Golden(
        layout=source.layout,
        pi05=source.pi05,
        dims=source.dims,
        weights=source.weights,
        horizon=source.horizon,
        steps=source.steps,
        max_tokens=source.max_tokens,
        notes=source.notes
        | {"seed": args.seed, "device": args.device, "bf16": source.bf16_notes if args.bf16 else None},
    )
    results = {}
    for kind in ("bf16", "f32") if args.bf16 else ("f32",):
        say(f"loading the model in {kind}")
        source.load(kind)
        for i, observation in enumerate(given):
            start = time.monotonic()
            results[kind, i] = source.run(observation, noise[i], args.stages and kind == "f32")
            say(f"{kind}, observation {i + 1} of {len(given)}: {time.monotonic() - start:.1f} s")
    for i, observation in enumerate(given):
        chunk, actions, stages = results["f32", i]
        rounded = results["bf16", i][0] if args.bf16 else None
        out.add(
            **source.prepare(observation),
            noise=noise[i],
            actions_f32=chunk,
            actions_bf16=rounded,
            stages=stages,
            request=observations.pack(observation),
            policy_actions=actions,
        )
    out.save(args.out)
    off = [results["bf16", i][0] - results["f32", i][0] for i in range(len(given))] if args.bf16 else []
    said = f"; bf16 is rms {np.sqrt(np.mean(np.square(off))):.2g} from it" if off else ""
    largest = max(np.abs(results["f32", i][0]).max() for i in range(len(given)))
    say(
        f"{args.out}: {len(given)} observations, {pathlib.Path(args.out).stat().st_size / 1e6:.1f} MB; largest action {largest:.3g} "
        f"in fp32{said}"
    )
    say(f"now: openpi verify --checkpoint {args.policy or args.checkpoint} {args.out}")


def main(argv=None):
    args = parse_options(argv)
    try:
        import golden
    except ImportError as error:
        say(f"record-golden: {error}; run it with the Python of openpi's or LeRobot's environment")
        return 2
    try:
        folder = pathlib.Path(args.out).resolve().parent
        if not folder.is_dir():
            raise golden.Problem(f"--out {args.out}: no folder {folder}")
        record(args, open_source(args))
    except (golden.Problem, OSError) as problem:
        say(f"record-golden: {problem}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
