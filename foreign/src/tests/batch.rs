//! Batch scripts of Slurm: what each becomes, that every line has a verdict, and that no damage is fatal.

use std::fs;

use super::{folder, options};
use crate::{Options, Reading, Verdict, is_batch_script, read_batch_script};

/// The names of all scripts, and their texts.
fn scripts() -> Vec<(String, String)> {
    let files = fs::read_dir(folder())
        .unwrap()
        .map(|file| file.unwrap().path());
    let mut scripts: Vec<(String, String)> = files
        .filter_map(|path| {
            let name = path
                .file_name()?
                .to_str()?
                .strip_suffix(".sbatch")?
                .to_owned();
            Some((name, fs::read_to_string(&path).unwrap()))
        })
        .collect();
    scripts.sort();
    assert!(scripts.len() >= 12, "the scripts have moved");
    scripts
}

fn read_script(name: &str, text: &str) -> Reading {
    assert!(is_batch_script(text), "{name}");
    let options = Options {
        file: format!("{name}.sbatch"),
        here: "/home/ada/runs".into(),
        ..options(name)
    };
    read_batch_script(text, &options)
}

/// `MUSTER_BLESS=1` writes the files anew. Read the difference: it is what users get.
#[test]
fn each_batch_script_becomes_what_is_written_beside_it() {
    let mut wrong = Vec::new();
    for (name, text) in scripts() {
        let reading = read_script(&name, &text);
        let is = super::shown(&name, &reading).replace(".yaml:", ".sbatch:");
        let golden = folder().join(format!("{name}.out"));
        if std::env::var_os("MUSTER_BLESS").is_some() {
            fs::write(&golden, &is).unwrap();
        }
        let must = fs::read_to_string(&golden).unwrap_or_default();
        if is != must {
            let differs = is.lines().zip(must.lines()).find(|(one, two)| one != two);
            wrong.push(format!("{name}: {differs:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A line that is no comment has a verdict, or belongs to a command that has one.
#[test]
fn every_line_of_an_accepted_script_has_a_verdict() {
    let (mut wrong, mut counted) = (Vec::new(), 0);
    for (name, text) in scripts() {
        let reading = read_script(&name, &text);
        if reading.jobs.is_empty() {
            continue;
        }
        let mut goes_on = false;
        for (number, line) in (1..).zip(text.lines()) {
            let is_option = line.starts_with("#SBATCH");
            let is_command = !line.trim().is_empty() && !line.trim_start().starts_with('#');
            let begins = (is_command || is_option) && !goes_on;
            // Quotes and continued lines.
            goes_on ^= line.matches('"').count() % 2 == 1;
            let open = goes_on;
            if begins {
                counted += 1;
                let has = reading
                    .remarks
                    .iter()
                    .any(|remark| remark.place.line == number);
                if !has
                    && !text
                        .lines()
                        .nth(number as usize - 2)
                        .is_some_and(|line| line.ends_with('\\'))
                {
                    wrong.push(format!("{name}:{number}: {line}"));
                }
            }
            goes_on = open;
        }
    }
    assert!(wrong.is_empty(), "without a verdict:\n{}", wrong.join("\n"));
    assert!(counted > 100, "only {counted} lines were looked at");
}

#[test]
fn what_is_accepted_is_a_job_for_core() {
    let mut jobs = 0;
    for (name, text) in scripts() {
        for document in read_script(&name, &text).documents() {
            let mut document = document.clone();
            document.spec.working_dir = None;
            let (_, spec) = document.check().unwrap_or_else(|e| panic!("{name}: {e:?}"));
            let printed = serde_saphyr::to_string(&document).unwrap();
            let again: muster_core::spec::JobDocument = serde_saphyr::from_str(&printed).unwrap();
            assert_eq!(again.check().unwrap().1, spec, "{name}");
            jobs += 1;
        }
    }
    assert!(jobs >= 7, "only {jobs} scripts were accepted");
}

/// What a user is refused, in one line.
fn refusals(text: &str) -> String {
    let reading = read_script("job", text);
    let refused = reading
        .remarks
        .iter()
        .filter(|remark| remark.verdict == Verdict::Refusal);
    let lines: Vec<String> = refused.map(ToString::to_string).collect();
    lines.join("\n")
}

/// The ranks' command and what each node has, of a script with these lines.
fn job(options: &str, lines: &str) -> Result<String, String> {
    let text = format!("#!/bin/bash\n#SBATCH {options} --gpus-per-node=4\n{lines}\n");
    let reading = read_script("job", &text);
    match reading.documents().next() {
        Some(document) => {
            let spec = &document.spec;
            let words = [&spec.command[..], &spec.args[..]].concat();
            let replicas = spec.replicas.unwrap_or_default();
            let procs = spec.proc_per_node.unwrap_or_default();
            Ok(format!("{replicas}x{procs} {}", words.join(" ")))
        }
        None => Err(refusals(&text)),
    }
}

#[test]
fn tasks_are_ranks_unless_a_launcher_starts_them() {
    for (options, lines, must) in [
        (
            "-N2 --ntasks-per-node=4",
            "srun python t.py",
            "2x4 python t.py",
        ),
        ("-N2 -n8", "srun python t.py", "2x4 python t.py"),
        (
            "-n8 --ntasks-per-node=4",
            "srun python t.py",
            "2x4 python t.py",
        ),
        (
            "-N2",
            "srun --ntasks-per-node=2 python t.py",
            "2x2 python t.py",
        ),
        (
            "-N2",
            "srun torchrun --nproc-per-node=4 t.py",
            "2x4 python3 t.py",
        ),
        (
            "-N2",
            "N=2\nsrun torchrun --nproc-per-node=$((N * 2)) t.py",
            "2x4 python3 t.py",
        ),
        (
            "-N1",
            "exec torchrun --nproc-per-node=gpu t.py",
            "1x4 python3 t.py",
        ),
        ("-N1", "python t.py | tee log", "1x1 python t.py"),
        ("-N2", "A=1 srun ./run --x", "2x1 ./run --x"),
        (
            "-N2",
            "srun env A=1 B=2 python t.py >& t.log",
            "2x1 python t.py",
        ),
        ("-N2", "srun ./run >& t.log --x &> u.log", "2x1 ./run --x"),
        ("-N2", "srun ./run 2>&1 >&2 2>&- > log --x", "2x1 ./run --x"),
    ] {
        assert_eq!(
            job(options, lines).as_deref(),
            Ok(must),
            "{options} {lines}"
        );
    }
}

#[test]
fn what_would_mean_something_else_is_refused() {
    for (options, lines, why) in [
        (
            "-N2",
            "python t.py",
            "3:1: python: runs on the first of 2 nodes only",
        ),
        (
            "-n8",
            "srun python t.py",
            "on as many nodes as Slurm likes; add --nodes",
        ),
        (
            "-N3 -n8",
            "srun python t.py",
            "not the same number on each node",
        ),
        (
            "-N2 --ntasks-per-node=4",
            "srun torchrun --nproc-per-node=4 t.py",
            "starts 4 launchers on each node",
        ),
        ("-N2", "srun -N1 python t.py", "asks for 1 of the 2 nodes"),
        (
            "-N2",
            "srun torchrun --nnodes=3 t.py",
            "says 3 nodes, and the job has 2",
        ),
        (
            "-N2",
            "srun a &\nsrun b\nwait",
            "3:1: srun: is started in the background",
        ),
        (
            "-N2",
            "for i in 1 2; do srun a; done",
            "3:1: for: begins something",
        ),
        (
            "-N2",
            "cat <<EOF > x\na\nEOF\nsrun a",
            "3:5: has a here-document",
        ),
        ("-N2", "f() { a; }\nsrun f", "3:2: has a group, a function"),
        (
            "-N2",
            "echo a > hosts\nsrun a hosts",
            "3:1: echo: runs once in Slurm",
        ),
        (
            "-N2",
            "H=$(scontrol show hostnames)\nsrun python t.py --hosts \"$H\"",
            "3:1: H: asks scontrol",
        ),
        (
            "-N2",
            "srun python t.py $SLURM_JOB_NODELIST",
            "needs SLURM_JOB_NODELIST",
        ),
        (
            "-N2",
            "srun python t.py $1",
            "needs $1, an argument of the script",
        ),
        ("-N2", "srun --mpi=pmix a < b", "reads a file as its input"),
        ("-N2", "mpirun python t.py", "write an MPIJob"),
        (
            "-N2",
            "source x\nsrun python -m torch.distributed.launch t.py",
            "its local rank as an argument",
        ),
        ("-N2", "echo x", "starts no command"),
        (
            "-N2 --dependency=afterok:1",
            "srun a",
            "muster run --after JOB",
        ),
        ("-N2 --begin=16:00", "srun a", "--start-after TIME"),
        (
            "hetjob\n#SBATCH -N2",
            "srun a",
            "has groups of different nodes",
        ),
        ("-N2 --signal=USR1@x", "srun a", "--signal: is \"USR1@x\""),
        ("-N2 --export=A", "srun a", "names A without a value"),
        ("-N99999", "srun a", "-N: spec.replicas"),
    ] {
        let refused = job(options, lines).unwrap_err();
        assert!(refused.contains(why), "{options} {lines}: {refused}");
    }
    assert!(
        refusals("#!/usr/bin/python\n#SBATCH -N1\nprint()\n")
            .contains("only scripts for bash and sh")
    );
    assert!(!is_batch_script("#!/bin/bash\nsrun a\n"));
    assert!(!is_batch_script("apiVersion: v1\n#SBATCH -N1\n"));
}

#[test]
fn what_could_be_lost_or_changed_is_refused() {
    for (lines, why) in [
        (
            "echo start | srun python t.py\npython eval.py",
            "3:1: echo: has a pipe",
        ),
        (
            "cat list | xargs -n1 tar xf\nsrun a",
            "3:1: cat: has a pipe",
        ),
        ("cat list | tee hosts\nsrun a", "3:1: cat: has a pipe"),
        ("srun hostname | tee hosts\nsrun a", "3:1: srun: has a pipe"),
        (
            "srun hostname > hosts\nsrun a",
            "3:1: srun: is one of 2 commands",
        ),
        ("srun a | tee log | grep x", "3:1: srun: has a pipe"),
        (
            "srun a | tee log &",
            "3:1: srun: is started in the background",
        ),
        (
            "env A=B python prepare.py\nsrun a",
            "3:1: env: runs once in Slurm",
        ),
        (
            "printf -v A x\nsrun a $A",
            "3:1: printf: runs once in Slurm",
        ),
        (": ${A:=x}\nsrun a $A", "3:1: :: runs once in Slurm"),
        ("echo a >& hosts\nsrun a", "3:1: echo: runs once in Slurm"),
        ("srun a >&", "redirects to nothing"),
        (
            "srun env A=$HOME python t.py",
            "set for one command to what only a shell can say",
        ),
        (
            "CMD=\"torchrun t.py\"\nsource x\nsrun $CMD",
            "5:1: srun: runs $CMD, which a line behind",
        ),
        (
            "ARGS=\"--nproc-per-node 4\"\nsource x.sh\nsrun torchrun $ARGS t.py",
            "5:1: srun: runs $ARGS, which a line behind",
        ),
        (
            "N=4\nsource x.sh\nsrun torchrun --nproc-per-node=$N t.py",
            "nproc",
        ),
        (
            "N=4\nsource x.sh\nsrun bash -c \"torchrun --nproc-per-node=$N t.py\"",
            "nproc",
        ),
        (
            "A=\"'1 2'\"\nsource x.sh\nsrun bash -c \"a $A\"",
            "5:1: srun: has a value in the text of a shell",
        ),
        (
            "A=1\nsource x.sh\nsrun bash -c \"a '$A'\"",
            "5:1: srun: has a value in the text of a shell",
        ),
        (
            "A=\"a --b\"\nsource x.sh\nsrun bash -c \"$A\"",
            "5:14: $A: runs $A, which a line behind",
        ),
        (
            "A=\"1 2\"\nsource x.sh\nsrun nice bash -xc \"a $A\"",
            "5:1: srun: has a value in the text of a shell",
        ),
        (
            "cd data || { echo no; exit 1; }\nsrun a",
            "3:1: cd: has a pipe or ||",
        ),
        ("cd data || exit 1 &\nsrun a", "3:1: cd: has a pipe or ||"),
        ("source x | tee log\nsrun a", "3:1: source: has a pipe"),
    ] {
        let refused = job("-N2", lines).unwrap_err();
        assert!(refused.contains(why), "{lines}: {refused}");
    }
}

/// The lines that each rank runs, of a script with these lines.
#[test]
fn a_shell_keeps_what_its_lines_mean() {
    for (lines, must) in [
        (
            "MODEL=small\nsource config.sh\nsrun python t.py $MODEL",
            "MODEL=small\nsource config.sh\nexec python -u t.py $MODEL",
        ),
        (
            "MODEL=small\nsource config.sh\nsrun a",
            "MODEL=small\nsource config.sh\nexec a",
        ),
        (
            "MODEL=small\nsource config.sh\nMODEL=big\nsrun python t.py $MODEL",
            "MODEL=small\nsource config.sh\nexec python -u t.py big",
        ),
        (
            "A=(1 '2 3')\nB=x\neval \"$(conda shell.bash hook)\"\nsrun a \"${A[@]}\" $B",
            "A=(1 '2 3')\nB=x\neval \"$(conda shell.bash hook)\"\nexec a \"${A[@]}\" $B",
        ),
        (
            "A='1 2'\nsource x.sh\nsrun bash -c \"a $A --b=${A}\"",
            "A='1 2'\nsource x.sh\nexec a $A --b=${A}",
        ),
        ("A=1\numask 2\nsrun a $A", "umask 2\nexec a 1"),
        // What loads software changes nothing that a script has set for itself.
        (
            "A=1\nmodule load x\nsource env/bin/activate\nsrun a $A",
            "A=1\nmodule load x\nsource env/bin/activate\nexec a 1",
        ),
        (
            "cd data || exit 1\nsource x || exit 2 # so\nsrun a || exit 3",
            "cd data || exit 1\nsource x || exit 2 # so\nexec a",
        ),
        (
            "module list 2>&1 |\n  grep cuda\numask 2\ncd d || exit 1 && srun a |& tee log || exit 1\nexit 0",
            "umask 2\ncd d || exit 1\nexec a",
        ),
        (
            "source x\nsrun bash -c 'cd /d || exit 1; a'",
            "source x\ncd /d || exit 1\nexec a",
        ),
        (
            "umask 2\nenv | grep CUDA | sort\necho x | tee -a log\nenv\nsrun -l hostname\nsrun a",
            "umask 2\nexec a",
        ),
    ] {
        let ran = job("-N2", lines).unwrap_or_else(|why| panic!("{lines}: {why}"));
        let text = ran.split_once("c ").unwrap().1;
        assert_eq!(text, must, "{lines}");
    }
}

#[test]
fn options_of_the_whole_job_do_not_count_in_a_step() {
    let line = "srun --signal=USR1@60 --hold -q high -C a100 --no-requeue ./run";
    let text = format!("#!/bin/bash\n#SBATCH -N1 --gpus-per-node=1\n{line}\n");
    let reading = read_script("job", &text);
    let said: Vec<String> = reading.remarks.iter().map(ToString::to_string).collect();
    for option in ["--signal", "--hold", "-q", "-C", "--no-requeue"] {
        let must = format!("warning: srun {option}: has no effect: it is about the whole job");
        assert!(said.iter().any(|said| said.contains(&must)), "{said:?}");
    }
    let spec = &reading.documents().next().unwrap().spec;
    assert_eq!((spec.suspend, &spec.stop_grace_period), (None, &None));
    assert_eq!((spec.priority, spec.rules.len()), (None, 1));
}

/// Variables before a command are those of the ranks.
#[test]
fn variables_of_env_are_the_job_s() {
    let text = "#!/bin/bash\n#SBATCH -N1 --gpus-per-node=1\nsrun env A=1 python t.py\n";
    let reading = read_script("job", text);
    let env = &reading.documents().next().unwrap().spec.env;
    let env: Vec<_> = env.iter().map(|var| (&*var.name, &*var.value)).collect();
    assert_eq!(env, [("A", "1")]);
}

/// Every script cut at every place, and with a piece taken out.
#[test]
fn no_damage_is_fatal() {
    for (name, text) in scripts() {
        let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        for end in ends.iter().step_by(3) {
            let cut = &text[..*end];
            let out = format!(
                "{}{}",
                &text[..*end],
                text.get(end + 7..).unwrap_or_default()
            );
            for text in [cut, &out] {
                if !is_batch_script(text) {
                    continue;
                }
                let reading = read_batch_script(text, &options(&name));
                for mut document in reading.documents().cloned() {
                    document.spec.working_dir = None;
                    assert!(document.check().is_ok(), "{name}: {text}");
                }
            }
        }
    }
    let long = "x".repeat(100_000);
    for body in [
        "$(".repeat(100_000),
        "A=(".repeat(100_000),
        "${".repeat(100_000),
        format!("A={long}\n{}srun a $A", "A=$A$A\n".repeat(60)),
        format!("srun bash -c '{}'", "srun bash -c ".repeat(20_000)),
        "srun ".repeat(100_000),
        "exec ".repeat(100_000),
        "A=1 ".repeat(50_000),
        "\\\n".repeat(100_000),
    ] {
        refusals(&format!("#!/bin/bash\n#SBATCH -N1\n{body}\n"));
    }
    for option in ["[".repeat(100_000), "n[1-9]".repeat(50), "'".into()] {
        assert!(refusals(&format!("#!/bin/bash\n#SBATCH -w {option}\nsrun a\n")).contains("2:1"));
    }
}
