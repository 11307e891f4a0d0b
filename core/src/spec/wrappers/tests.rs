use super::*;

fn seen(text: &str) -> Seen {
    let words: Vec<&str> = text.split_whitespace().collect();
    look(&words)
}

/// The command behind the wrapper at the beginning of a text.
fn behind(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    match look(&words) {
        Seen::Behind(behind) => words[behind.at..].join(" "),
        other => format!("{other:?}"),
    }
}

/// Each line was run with the real program, with `echo` for the command, where the program is one that
/// can be had; the others are from their manuals.
#[test]
fn the_command_is_found_behind_all_options() {
    for wrapper in [
        "nice",
        "nice -n 1",
        "nice -n1",
        "nice -n -5",
        "nice -5",
        "nice --5",
        "nice --adjustment=1",
        "nice --adj 1",
        "/usr/bin/nice -n 1 --",
        "ionice",
        "ionice -c 2 -n 0",
        "ionice -c2 -n0 -t",
        "ionice --class best-effort --classdata=3 --ignore",
        "chrt -b 0",
        "chrt --batch 0",
        "chrt -v -f 10",
        "chrt -d -T 1000 --sched-period 5000 -D5000 0",
        "taskset 0x1",
        "taskset -c 0-1",
        "taskset --cpu-list 0,1",
        "taskset -ac 0",
        "numactl --interleave=all",
        "numactl -N 0 -m 0",
        "numactl --cpunodebind=0 --membind 0 --",
        "numactl -C 0 -l",
        "numactl --physcpubind +0-1 --localalloc",
        "stdbuf -oL -eL",
        "stdbuf -o L --error=0",
        "prlimit --nofile=1024:2048 --core=0",
        "timeout 3h",
        "timeout -k 10 -s INT 60",
        "timeout --kill-after=5 --signal TERM --foreground -v 1d",
        "timeout --preserve-status -- 60",
        "timeout --s TERM 60",
        "env A=1 B=2",
        "env -u A -C / --unset=B C=1",
        "env --default-signal=PIPE --ignore-signal -v",
        "time",
        "time -v",
        "/usr/bin/time -f %e --append",
        "catsegv",
        "nohup",
        "setsid",
        "setsid -w",
        "setsid --fork --wait",
        "tini",
        "tini --",
        "tini -s -g -vv --",
        "/sbin/tini -p SIGKILL -e 143 --",
        "dumb-init",
        "dumb-init --",
        "dumb-init -c -v --rewrite 15:2 --",
        "dumb-init -r15:3",
        "catatonit -g --",
        "conda run",
        "conda run -n train --no-capture-output",
        "/opt/conda/bin/conda run --live-stream --name=train --cwd /w",
        "conda run -p /opt/env -v",
        "mamba run -n train",
        "micromamba run -r /opt -n train -e A=1",
        "pixi run",
        "pixi run --environment gpu --frozen",
        "pixi run -e gpu --manifest-path /w/pixi.toml",
        "uv run",
        "uv run --",
        "uv run --no-sync --with torch --python 3.11",
        "uv --directory /w run --frozen -q",
        "uv run --extra gpu --env-file=.env --",
        "poetry run",
        "poetry -C /w run",
        "poetry --no-interaction run",
        "pipenv run",
        "pipenv run --system",
        "pdm run -p /w --env A=1",
        "rye run",
        "xvfb-run -a",
        "xvfb-run -s -ac --auto-servernum",
        "strace -f -e trace=open",
        "strace -ff -o out -s 200",
        "strace -fttT --trace=file",
        "nsys profile -o r_%q{RANK}",
        "nsys profile -t cuda,nvtx -w true --stats=true --force-overwrite true",
        "nsys profile --capture-range=cudaProfilerApi --output=r.%p -x true",
        "ncu --set full --target-processes all -f",
        "ncu -k regex:gemm -c 5 --nvtx -o r_%p",
        "sudo",
        "sudo -E -u trainer",
        "sudo --preserve-env=PATH -n A=1",
        "gosu trainer",
    ] {
        let text = format!("{wrapper} torchrun --nnodes 2 train.py");
        assert_eq!(behind(&text), "torchrun --nnodes 2 train.py", "{text}");
    }
}

#[test]
fn what_is_no_wrapper_or_has_no_command_is_left_alone() {
    for text in [
        "",
        "python train.py",
        "conda install torchrun",
        "uv pip install torch",
        "uv tool run torchrun train.py",
        "nsys stats report",
        "nice",
        "nice -n 1",
        "timeout 60",
        "conda run",
        "env A=1",
    ] {
        assert_eq!(seen(text), Seen::NoWrapper, "{text}");
    }
}

#[test]
fn an_option_that_is_not_known_hides_the_command() {
    for (text, name, option) in [
        (
            "uv run --new-option x torchrun a.py",
            "uv run",
            "--new-option",
        ),
        ("nice -z torchrun a.py", "nice", "-z"),
        ("env -S x", "env", "-S"),
        ("ionice -p 1", "ionice", "-p"),
        ("taskset -p 1", "taskset", "-p"),
        // It has no value.
        ("nice -n", "nice", "-n"),
    ] {
        let opaque = Seen::Opaque {
            name: name.into(),
            option: option.into(),
        };
        assert_eq!(seen(text), opaque, "{text}");
    }
}

#[test]
fn a_wrapper_is_kept_left_out_or_its_meaning_is_lost() {
    let fate = |text: &str| match seen(text) {
        Seen::Behind(behind) => behind.fate,
        other => panic!("{text}: {other:?}"),
    };
    for text in [
        "nice -n 1 x",
        "timeout 3h x",
        "conda run -n a x",
        "nsys profile -o r_%q{RANK} x",
        "ncu --set full x",
        "time -v x",
        "strace -f x",
        "strace -ff -o out x",
        "xvfb-run -a x",
        "env -u A x",
    ] {
        assert_eq!(fate(text), FateHere::Kept, "{text}");
    }
    for (text, why) in [
        ("tini -g -- x", "reaps what ranks leave behind"),
        ("dumb-init x", "passes signals on"),
        ("setsid -w x", "a session of its own"),
        ("nohup x", "no terminal"),
    ] {
        let is = fate(text);
        assert!(
            matches!(&is, FateHere::LeftOut(is) if is.contains(why)),
            "{text}: {is:?}"
        );
    }
    for (text, why) in [
        ("sudo -E x", "agents' user"),
        ("env -i A=1 x", "with -i it would take from each rank"),
        ("env - A=1 x", "with -i it would take from each rank"),
        ("micromamba run --clean-env x", "with --clean-env"),
        ("tini -e 143 -- x", "with -e it would hide the exit code"),
        ("dumb-init --rewrite 15:2 x", "another signal"),
        ("nsys profile x", "give each a name with -o NAME_%q{RANK}"),
        (
            "nsys profile -o report x",
            "the same file \"report\"; give it a name of its own",
        ),
        ("ncu --export=report x", "the same file \"report\""),
        (
            "time -o cost x",
            "the same file \"cost\"; leave the file out",
        ),
        ("strace -f -o out x", "the same file \"out\""),
        ("xvfb-run x", "add -a"),
    ] {
        let is = fate(text);
        assert!(
            matches!(&is, FateHere::Lost(is) if is.contains(why)),
            "{text}: {is:?}"
        );
    }
}
