//! Turns an assignment into the process that starts its workers: torchrun's flags and the complete
//! environment.
//!
//! One generation is one static torchrun on each node with exact N and rank, without restarts of
//! its own, and with a TCPStore that Muster serves. The purpose of each variable, and the first
//! version of torch that knows it, is beside it. Versions 2.4 to 2.15 were read.

use std::collections::BTreeMap;

use crate::{
    id::NodeName,
    nccl::{environment, log, profile::Profile},
    node::{account::Account, caches},
    node_report::NodeReport,
    run::Assignment,
    spec::entry::{Entry, is_python},
};

mod base;
mod meeting;
mod since;

pub use base::{EnvIs, passed};
pub use meeting::{Meeting, alone};
pub use since::lacks;

/// The process that starts one node's workers. Its environment is complete: nothing else reaches
/// the workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    pub program: String,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub dir: String,
    /// As in [`Site`].
    pub account: Option<Account>,
}

/// What the node adds to every launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    pub node: NodeName,
    /// The node's report. Its address, interfaces and GPUs decide NCCL's variables.
    pub report: NodeReport,
    /// The run's directory, which holds the runner's socket and the shim.
    pub run_dir: String,
    /// The environment that a launch's own environment starts from.
    pub env: BTreeMap<String, String>,
    /// What `env` is, which decides how much of it a launch takes.
    pub env_is: EnvIs,
    /// Who the job runs as, where jobs run as their owners. `None`: the agent's user.
    pub account: Option<Account>,
}

/// The variable that names the run's directory in all its processes.
pub const RUN_DIR: &str = "MUSTER_RUN_DIR";

/// From this torch on, torchrun at node rank 0 may fail to bind the port of a TCPStore on its host.
pub const FORGIVES_BIND: (u32, u32) = (2, 7);

/// The process that starts `assignment` on this node, to meet the others at `meeting`. The error is
/// for the user.
pub fn launch(
    assignment: &Assignment,
    meeting: Meeting<'_>,
    site: &Site,
) -> Result<Launch, String> {
    let entry = entry(assignment)?;
    let shim = format!("{}/muster-shim", site.run_dir);
    let mut args: Vec<String> = ["-m", "torch.distributed.run"].map(str::to_owned).into();
    match meeting {
        Meeting::Served(store) => args.extend([
            "--rdzv-backend=static".to_owned(),
            format!("--master-addr={}", store.host),
            format!("--master-port={}", store.port),
            format!("--node-rank={}", assignment.node_rank),
        ]),
        // The meaning of torchrun's --standalone. With port 0 it binds a free port and tells its
        // ranks.
        Meeting::Own => args.extend([
            "--rdzv-backend=c10d".to_owned(),
            "--rdzv-endpoint=localhost:0".to_owned(),
        ]),
    }
    args.extend([
        format!("--rdzv-id={}", assignment.rendezvous),
        format!("--nnodes={}", assignment.node_count),
        format!("--nproc-per-node={}", assignment.proc_per_node),
        // Only the coordinator decides about restarts.
        "--max-restarts=0".to_owned(),
        // The default was 5 s before torch 2.4.
        "--monitor-interval=0.1".to_owned(),
    ]);
    let (worker, options) = match entry {
        Entry::Script {
            python,
            options,
            script,
            args: own,
        } => {
            args.push(script);
            args.extend(own);
            (python, options)
        }
        Entry::Module {
            python,
            options,
            module,
            args: own,
        } => {
            args.extend(["-m".to_owned(), module]);
            args.extend(own);
            (python, options)
        }
        Entry::Program { program, args: own } => {
            args.extend(["--no-python".to_owned(), shim.clone()]);
            args.extend(own);
            (program, Vec::new())
        }
    };
    let env = environment(
        assignment,
        meeting,
        site,
        Shim {
            path: shim,
            program: &worker,
            options: &options,
        },
    );
    let asked = assignment.working_dir.as_deref();
    let dir = base::directory(asked, &site.env, site.env_is, &env);
    Ok(Launch {
        account: site.account.clone(),
        program: interpreter(&assignment.command, &worker),
        args,
        env,
        dir,
    })
}

/// The program that the assignment starts. The error is for the user.
pub fn entry(assignment: &Assignment) -> Result<Entry, String> {
    let Assignment { command, args, .. } = assignment;
    if assignment.lends() {
        // What a launcher asks for is run by a shell.
        return Ok(Entry::Program {
            program: "/bin/sh".into(),
            args: Vec::new(),
        });
    }
    let as_it_is = || {
        let (program, own) = command.split_first()?;
        Some(Entry::Program {
            program: program.clone(),
            args: [own, args].concat(),
        })
    };
    match Entry::read(command, args) {
        // A command that torchrun cannot start, such as `python -c`, is a program like others without it.
        Err(why) if !assignment.framework.is_torch() => as_it_is().ok_or(why),
        entry => entry,
    }
}

/// The arguments of the ranks themselves, without torchrun: the interpreter's options, and a script
/// (or `-m` and a module) with its arguments. `None`: the workers are not Python, or nothing can be
/// imported ahead for their framework, or members share the node.
pub fn ranks(assignment: &Assignment) -> Option<(Vec<String>, Vec<String>)> {
    // Members that share a node may run different programs, each with devices of its own.
    if !assignment.framework.has_launchers() || assignment.is_shared() {
        return None;
    }
    match Entry::read(&assignment.command, &assignment.args).ok()? {
        Entry::Script {
            options,
            script,
            args,
            ..
        } => Some((options, [vec![script], args].concat())),
        Entry::Module {
            options,
            module,
            args,
            ..
        } => Some((options, [vec!["-m".to_owned(), module], args].concat())),
        Entry::Program { .. } => None,
    }
}

/// The command of one rank if Muster starts it without torchrun. It is unbuffered, as torchrun runs
/// a script, too.
pub fn rank_command(assignment: &Assignment) -> Vec<String> {
    match entry(assignment) {
        Ok(Entry::Script {
            python,
            options,
            script,
            args,
        }) => [vec![python], options, vec!["-u".to_owned(), script], args].concat(),
        Ok(Entry::Module {
            python,
            options,
            module,
            args,
        }) => [
            vec![python],
            options,
            vec!["-u".to_owned(), "-m".to_owned(), module],
            args,
        ]
        .concat(),
        Ok(Entry::Program { program, args }) => [vec![program], args].concat(),
        // The coordinator refuses such a job.
        Err(_) => Vec::new(),
    }
}

/// torchrun's own arguments in a launch that executes torchrun.
pub fn own_arguments(launch: &Launch) -> &[String] {
    // They come after `-m torch.distributed.run`.
    launch.args.get(2..).unwrap_or_default()
}

/// The part of a launch's environment that is the same in every generation of a job on its node. A
/// launcher may be started with it before the next generation is known.
pub fn lasting(launch: &Launch) -> BTreeMap<String, String> {
    const CHANGING: [&str; 7] = [
        "MASTER_ADDR",
        "MASTER_PORT",
        "MUSTER_GENERATION",
        "MUSTER_RESTART_COUNT",
        RUN_DIR,
        "PYTHON_EXEC",
        "MUSTER_SHIM_DIR",
    ];
    // These are read when a process group is made, long after the launcher has handed them over.
    const READ_LATE: [&str; 6] = ["NCCL_", "TORCH_NCCL_", "GLOO_", "TP_", "FI_", "NODE_"];
    let changing = |name: &str| {
        CHANGING.contains(&name) || READ_LATE.iter().any(|prefix| name.starts_with(prefix))
    };
    launch
        .env
        .iter()
        .filter(|(name, _)| !changing(name))
        .map(|(n, v)| (n.clone(), v.clone()))
        .collect()
}

/// The interpreter that runs torchrun: the job's own, or for other programs the one that its PATH
/// names.
fn interpreter(command: &[String], worker: &str) -> String {
    if command.is_empty() || is_python(worker) {
        worker.to_owned()
    } else {
        "python3".to_owned()
    }
}

/// The program between torchrun and each rank. It is needed because torchrun hides how a rank
/// ended.
struct Shim<'a> {
    path: String,
    program: &'a str,
    options: &'a [String],
}

fn environment(
    assignment: &Assignment,
    meeting: Meeting<'_>,
    site: &Site,
    shim: Shim<'_>,
) -> BTreeMap<String, String> {
    let mut env: BTreeMap<String, String> = site
        .env
        .iter()
        .filter(|(name, _)| base::passes(name, site.env_is))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    // What the agent's environment says of a user is said of root.
    env.extend(site.account.iter().flat_map(Account::env));
    // The values that a job may change, and its own variables. The number of threads is one of
    // them; without it torchrun prints eight lines about it.
    env.extend(
        surroundings(assignment, site)
            .set()
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    env.extend(caches::variables(assignment, &site.run_dir, &env));
    let log = logs_nccl(assignment, site, &env);
    let mut ours = |name: &str, value: String| drop(env.insert(name.to_owned(), value));
    for (name, value) in log.into_iter().flatten() {
        ours(name, value);
    }
    ours("MUSTER_JOB", assignment.name.name.clone());
    ours("MUSTER_NAMESPACE", assignment.name.namespace.clone());
    if let Some(place) = assignment.layout.place(assignment.node_rank) {
        ours("MUSTER_ROLE", place.share.name.clone());
        ours("MUSTER_ROLE_INDEX", place.index.to_string());
    }
    // The --rdzv-id is new in every generation, so ranks get the uid as TORCHELASTIC_RUN_ID.
    ours("MUSTER_JOB_UID", assignment.run.job.to_string());
    ours("MUSTER_GENERATION", assignment.run.generation.to_string());
    ours("MUSTER_NODE", site.node.to_string());
    // torchrun counts from 0 in every generation. Ranks get this as TORCHELASTIC_RESTART_COUNT.
    ours("MUSTER_RESTART_COUNT", assignment.restart_count.to_string());
    if let Meeting::Served(store) = meeting {
        // With these three variables torchrun at node rank 0 ignores that it cannot bind the
        // TCPStore's port on the TCPStore's own host (2.7).
        ours("TORCHELASTIC_USE_AGENT_STORE", "True".into());
        ours("MASTER_ADDR", store.host.clone());
        ours("MASTER_PORT", store.port.to_string());
    }
    // All nodes have equally many ranks, so torchrun need not exchange roles by the TCPStore (2.6).
    ours("TORCH_ELASTIC_WORKER_IDENTICAL", "1".into());
    // No other process on the machine has this variable with this value, so it is used to find what
    // is left of a run.
    ours(RUN_DIR, site.run_dir.clone());
    // torchrun runs this program instead of the interpreter (1.13).
    ours("PYTHON_EXEC", shim.path);
    ours("MUSTER_SHIM_DIR", site.run_dir.clone());
    ours("MUSTER_SHIM_PROGRAM", shim.program.to_owned());
    ours("MUSTER_SHIM_ARGS", json_array(shim.options));
    // Write each log line at once: the lines right before a crash are the most useful ones.
    ours("PYTHONUNBUFFERED", "1".into());
    env
}

/// The variables for NCCL's log of its initialization. None where NCCL is not used, or somebody else has
/// said what it is to log.
fn logs_nccl(
    assignment: &Assignment,
    site: &Site,
    env: &BTreeMap<String, String>,
) -> Option<[(&'static str, String); 3]> {
    // A worker pod has its GPUs from the kubelet; the profile knows that there are some.
    let uses_gpus = !assignment.gpus.is_empty() || assignment.profile != Profile::default();
    if !uses_gpus || !assignment.framework.is_torch() {
        return None;
    }
    let files = assignment.env_files.keys();
    let given = env.keys().chain(files).chain(&site.report.host.nccl_conf);
    log::variables(&site.run_dir, given.map(String::as_str))
}

/// The variables of NCCL, Gloo and torch's threads on this node, with their reasons.
pub fn surroundings(assignment: &Assignment, site: &Site) -> environment::Environment {
    let share = environment::Share {
        report: &site.report,
        gpus: &assignment.gpus,
        hides_gpus: assignment.hides_gpus,
        ranks: assignment.proc_per_node,
        nodes: assignment.node_count,
        env: &assignment.env,
    };
    environment::environment(&assignment.profile, share)
}

/// A list of texts as JSON (RFC 8259, 7).
fn json_array(items: &[String]) -> String {
    let quoted = items.iter().map(|item| {
        let escaped: String = item
            .chars()
            .map(|c| match c {
                '"' | '\\' => format!("\\{c}"),
                c if c < ' ' => format!("\\u{:04x}", c as u32),
                c => c.to_string(),
            })
            .collect();
        format!("\"{escaped}\"")
    });
    format!("[{}]", quoted.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Endpoint;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn at(address: &str) -> NodeReport {
        NodeReport {
            address: address.into(),
            ..NodeReport::default()
        }
    }

    fn site() -> Site {
        let own = [
            ("PATH", "/bin"),
            ("HOME", "/home/u"),
            ("LC_ALL", "C"),
            ("PET_NNODES", "9"),
            ("RANK", "3"),
            ("SECRET", "s"),
        ];
        let env = own
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        Site {
            node: "n1".into(),
            report: at("127.0.0.1"),
            run_dir: "/runs/a-g1".into(),
            env,
            env_is: EnvIs::Agents,
            account: None,
        }
    }

    fn job(command: &str, args: &str) -> Assignment {
        Assignment {
            command: words(command),
            args: words(args),
            ..crate::node::turn::tests::assignment("a", 3)
        }
    }

    fn meeting() -> Endpoint {
        Endpoint {
            host: "10.0.0.7".into(),
            port: 4711,
        }
    }

    #[test]
    fn a_script_under_torchrun() {
        let launch = launch(
            &job("/opt/py/python3 -O", "train.py --epochs 3"),
            Meeting::Served(&meeting()),
            &site(),
        )
        .unwrap();
        assert_eq!(launch.program, "/opt/py/python3");
        let flags = "-m torch.distributed.run --rdzv-backend=static --master-addr=10.0.0.7 --master-port=4711 --node-rank=0 \
                     --rdzv-id=a-g3 --nnodes=2 --nproc-per-node=1 --max-restarts=0 --monitor-interval=0.1 train.py --epochs 3";
        assert_eq!(launch.args, words(flags));
        assert_eq!(launch.dir, "/home/u");
        let env = [
            ("GLOO_SOCKET_IFNAME", "lo"),
            ("HOME", "/home/u"),
            ("LC_ALL", "C"),
            ("MASTER_ADDR", "10.0.0.7"),
            ("MASTER_PORT", "4711"),
            ("MUSTER_GENERATION", "3"),
            ("MUSTER_JOB", "a"),
            ("MUSTER_JOB_UID", "a"),
            ("MUSTER_NAMESPACE", "default"),
            ("MUSTER_NODE", "n1"),
            ("MUSTER_RESTART_COUNT", "0"),
            ("MUSTER_RUN_DIR", "/runs/a-g1"),
            ("MUSTER_SHIM_ARGS", "[\"-O\"]"),
            ("MUSTER_SHIM_DIR", "/runs/a-g1"),
            ("MUSTER_SHIM_PROGRAM", "/opt/py/python3"),
            ("NODE_GPU_COUNT", "0"),
            ("PATH", "/bin"),
            ("PYTHONUNBUFFERED", "1"),
            ("PYTHON_EXEC", "/runs/a-g1/muster-shim"),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("TORCHINDUCTOR_CACHE_DIR", "/runs/a-cache/inductor"),
            ("TORCH_ELASTIC_WORKER_IDENTICAL", "1"),
            ("TRITON_CACHE_DIR", "/runs/a-cache/triton"),
        ];
        assert_eq!(
            launch.env,
            env.map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into()
        );
    }

    #[test]
    fn an_older_torch_alone_meets_at_its_own_store() {
        let one = Assignment {
            node_count: 1,
            ..job("python3", "t.py")
        };
        assert!(
            alone(&one, (2, 6)) && !alone(&one, (2, 7)) && !alone(&job("python3", "t.py"), (2, 6))
        );
        let launch = launch(&one, Meeting::Own, &site()).unwrap();
        let flags = "-m torch.distributed.run --rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-id=a-g3 --nnodes=1 \
                     --nproc-per-node=1 --max-restarts=0 --monitor-interval=0.1 t.py";
        assert_eq!(launch.args, words(flags));
        for name in ["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"] {
            assert!(
                !launch.env.contains_key(name),
                "{name} would send the ranks to the other store"
            );
        }
    }

    #[test]
    fn modules_and_other_programs() {
        let module = launch(
            &job("python3", "-m pkg.train -v"),
            Meeting::Served(&meeting()),
            &site(),
        )
        .unwrap();
        assert_eq!(
            module.args[module.args.len() - 3..],
            words("-m pkg.train -v")
        );
        let program = launch(&job("./train", "x"), Meeting::Served(&meeting()), &site()).unwrap();
        assert_eq!(program.program, "python3");
        assert_eq!(
            program.args[program.args.len() - 3..],
            words("--no-python /runs/a-g1/muster-shim x")
        );
        assert_eq!(program.env["MUSTER_SHIM_PROGRAM"], "./train");
        assert!(
            launch(
                &job("python3", "-c pass"),
                Meeting::Served(&meeting()),
                &site()
            )
            .is_err()
        );
    }

    #[test]
    fn a_job_may_change_defaults_but_not_what_is_ours() {
        let set = [
            ("OMP_NUM_THREADS", "4"),
            ("GLOO_SOCKET_IFNAME", "eth1"),
            ("MASTER_ADDR", "evil"),
            ("PATH", "/job/bin"),
        ];
        let env = set
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let gpus = vec!["GPU-a".to_owned(), "GPU-b".to_owned()];
        let assignment = Assignment {
            env,
            gpus,
            proc_per_node: 2,
            working_dir: Some("/w".into()),
            ..job("python3", "t.py")
        };
        let changed = launch(&assignment, Meeting::Served(&meeting()), &site()).unwrap();
        assert_eq!(
            (
                changed.env["OMP_NUM_THREADS"].as_str(),
                changed.env["GLOO_SOCKET_IFNAME"].as_str()
            ),
            ("4", "eth1")
        );
        assert_eq!(
            (
                changed.env["MASTER_ADDR"].as_str(),
                changed.env["PATH"].as_str()
            ),
            ("10.0.0.7", "/job/bin")
        );
        assert_eq!(
            (
                changed.env["CUDA_VISIBLE_DEVICES"].as_str(),
                changed.dir.as_str()
            ),
            ("GPU-a,GPU-b", "/w")
        );
        let two = Assignment {
            proc_per_node: 2,
            ..job("python3", "t.py")
        };
        assert_eq!(
            launch(&two, Meeting::Served(&meeting()), &site())
                .unwrap()
                .env["OMP_NUM_THREADS"],
            "1"
        );
        let elsewhere = Site {
            report: at("10.0.0.8"),
            ..site()
        };
        assert!(
            !launch(&two, Meeting::Served(&meeting()), &elsewhere)
                .unwrap()
                .env
                .contains_key("GLOO_SOCKET_IFNAME")
        );
    }

    #[test]
    fn json_survives_quotes() {
        let items = ["a\"b\\c\n", "", "ü"].map(str::to_owned);
        assert_eq!(
            serde_json::from_str::<Vec<String>>(&json_array(&items)).unwrap(),
            items
        );
    }
}
