//! The checks before anything of a run is started. They let a user read "script not found on
//! node-2" instead of a torchrun traceback.

use std::{collections::BTreeMap, fs, path::Path};

use muster_core::{
    nccl::stack::{Stack, USE_NCCL2, nccl2},
    node::{
        fitness, launch,
        torchrun::{self, FORGIVES_BIND, Launch, Site},
    },
    run::{Assignment, CONTAINER_GOES, DueTo, Refusal},
};
use muster_runner::place::Wanted;

use crate::{host::RunnerHost, trials::Trials};

mod interpreter;

pub(crate) use interpreter::{Answer, Met};

/// Checks runs, and remembers the answers of interpreters.
#[derive(Debug, Default)]
pub(crate) struct Preflight {
    interpreters: interpreter::Interpreters,
    trials: Trials,
}

impl Preflight {
    /// With the trials that say which interpreters this node has proven itself.
    pub(crate) fn new(trials: Trials) -> Self {
        Self {
            trials,
            ..Self::default()
        }
    }

    /// The interpreters of this node's runs, with the environments in which they were asked.
    pub(crate) fn met(&self) -> Vec<Met> {
        self.interpreters.met()
    }

    /// What the interpreter has. `dir`: where it is asked.
    pub(crate) async fn ask(
        &self,
        host: &dyn RunnerHost,
        python: &Path,
        env: &BTreeMap<String, String>,
        dir: &Path,
    ) -> Result<Answer, Refusal> {
        let mut answer = self.interpreters.ask(host, python, env, dir).await?;
        answer.interpreter.trial = self.trials.find(answer.read_from(), uid(host));
        let use_nccl2 = env.get(USE_NCCL2).map(String::as_str);
        answer.stack.nccl2 = nccl2(answer.interpreter.torch, use_nccl2).to_owned();
        Ok(answer)
    }

    /// Returns what the run's interpreter has, or tells the user why the run cannot be started
    /// here. `shared`: the member shares its node with others, so that no torchrun is started.
    pub(crate) async fn check(
        &self,
        host: &dyn RunnerHost,
        assignment: &Assignment,
        shared: bool,
        launch: &Launch,
        site: &Site,
    ) -> Result<Answer, Refusal> {
        let node = &site.node;
        let hash = assignment.profile.hash();
        if hash != assignment.profile_hash {
            return Err(DueTo::Node.because(format!(
                "{node} reads the profile of this generation as {hash}, the coordinator as {}: agent and coordinator are of different versions",
                assignment.profile_hash
            )));
        }
        if let Some(why) = torchrun::surroundings(assignment, site).fatal() {
            return Err(DueTo::Job.because(format!("{why} on {node}")));
        }
        let runs = Path::new(&site.run_dir).parent().unwrap_or(Path::new("/"));
        let unfit = fitness::unfit(assignment, &site.report, |pid| is_ours(pid, runs));
        if let Some(due_to) = fitness::due_to(&unfit) {
            let why: Vec<String> = unfit.iter().map(ToString::to_string).collect();
            let why = why.join("; ");
            return Err(due_to.because(format!("{node} is not fit for it: {why}")));
        }
        let programs = launch::programs(assignment, shared, launch)?;
        let wanted = Wanted {
            dir: (&launch.dir).into(),
            env_files: assignment.env_files.clone(),
            path: launch.env.get("PATH").cloned(),
            program: programs.first,
            script: programs.script.map(Into::into),
            ranks: programs.ranks,
        };
        let python = host
            .find(&wanted)
            .map_err(|why| missing(&why).because(format!("{why} on {node}")))?;
        if !programs.asks_torch {
            return Ok(Answer::unasked());
        }
        let mut answer = self
            .ask(host, &python, &launch.env, Path::new(&launch.dir))
            .await
            .map_err(|why| why.due_to.because(format!("{} on {node}", why.reason)))?;
        if launch::meets_its_own_store(assignment, shared, &answer.interpreter, site) {
            let torch = answer.interpreter.torch;
            return Err(format!(
                "torch {}.{} of {} on {node} cannot be node rank 0 of several nodes on one host; torch {}.{} or later can, and any can with launch: exec",
                torch.0,
                torch.1,
                python.display(),
                FORGIVES_BIND.0,
                FORGIVES_BIND.1
            )
            .into());
        }
        // torchrun's interpreter does not know what a program of another kind runs.
        if programs.is_program {
            answer.stack = Stack::default();
        }
        Ok(answer)
    }
}

/// As whom interpreters are asked here. What the processes of one user say is believed of his jobs alone.
fn uid(host: &dyn RunnerHost) -> Option<u32> {
    host.account().map(|account| account.uid)
}

/// Whose doing it is that something was not found: a container that does not answer has not looked.
fn missing(why: &str) -> DueTo {
    match CONTAINER_GOES.iter().any(|words| why.contains(words)) {
        true => DueTo::Unknown,
        false => DueTo::Job,
    }
}

/// Whether the process belongs to one of this agent's runs, which all carry their directory in the
/// environment. A process that has ended since it was seen counts too.
fn is_ours(pid: u32, runs: &Path) -> bool {
    match fs::read(format!("/proc/{pid}/environ")) {
        Ok(environment) => {
            let mark = [
                torchrun::RUN_DIR.as_bytes(),
                b"=",
                runs.as_os_str().as_encoded_bytes(),
            ]
            .concat();
            environment
                .split(|byte| *byte == 0)
                .any(|variable| variable.starts_with(&mark))
        }
        Err(e) => e.kind() == std::io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{collections::BTreeMap, io::Write, os::unix::fs::PermissionsExt, time::Duration};

    use muster_core::{
        id::{Generation, JobName, JobUid},
        nccl::profile::Profile,
        node::torchrun::{EnvIs, Meeting, launch},
        node_report::NodeReport,
        run::{Endpoint, RunId},
        spec::Launch as Lane,
    };

    use super::*;
    use crate::host;

    pub(crate) fn assignment(command: &[&str], args: &[&str], dir: &Path) -> Assignment {
        let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect();
        Assignment {
            run: RunId {
                job: JobUid::from("a"),
                generation: Generation(1),
            },
            name: JobName {
                namespace: "default".into(),
                name: "a".into(),
            },
            rendezvous: "r".into(),
            node_rank: 0,
            node_count: 1,
            proc_per_node: 1,
            first_rank: 0,
            world_size: 1,
            store_host: "n1".into(),
            hosts_store: true,
            store_clients: Vec::new(),
            env_files: BTreeMap::new(),
            command: words(command),
            args: words(args),
            env: BTreeMap::new(),
            working_dir: Some(dir.to_str().unwrap().into()),
            image: None,
            gpus: Vec::new(),
            hides_gpus: false,
            launch: Lane::Cold,
            standbys: Default::default(),
            inspect: Default::default(),
            stop_grace: Duration::ZERO,
            step_pattern: None,
            checkpoint_pattern: None,
            restart_count: 0,
            profile: Profile::default(),
            profile_hash: Profile::default().hash(),
            fence_after: None,
            framework: Default::default(),
            layout: Default::default(),
            members: Vec::new(),
            programs: Vec::new(),
            owner: None,
        }
    }

    /// A directory with an interpreter that answers with `says`, and a script.
    fn bench(says: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            (
                "python3",
                format!(
                    "#!/bin/sh\necho x >> {}/asked\n{says}\n",
                    dir.path().display()
                ),
            ),
            ("train.py", String::new()),
        ] {
            let mut file = fs::File::create(dir.path().join(name)).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            file.set_permissions(fs::Permissions::from_mode(0o755))
                .unwrap();
        }
        dir
    }

    async fn check(
        preflight: &Preflight,
        assignment: Assignment,
        bin: &Path,
    ) -> Result<(), String> {
        let checked = refusal(preflight, assignment, bin).await;
        checked.map_err(|refusal| refusal.reason)
    }

    async fn refusal(
        preflight: &Preflight,
        assignment: Assignment,
        bin: &Path,
    ) -> Result<(), Refusal> {
        let env = BTreeMap::from([("PATH".to_owned(), bin.to_str().unwrap().to_owned())]);
        let report = NodeReport {
            address: "127.0.0.1".into(),
            ..NodeReport::default()
        };
        let site = Site {
            node: "n1".into(),
            report,
            run_dir: "/r".into(),
            env,
            env_is: EnvIs::Agents,
            account: None,
        };
        let launch = launch(
            &assignment,
            Meeting::Served(&Endpoint {
                host: "127.0.0.1".into(),
                port: 1,
            }),
            &site,
        )
        .unwrap();
        preflight
            .check(&host::tests::here(), &assignment, false, &launch, &site)
            .await
            .map(|_| ())
    }

    #[tokio::test]
    async fn says_what_is_missing_and_where() {
        let dir = bench("echo 2.15.0+cu130");
        let at = dir.path();
        let shown = at.display();
        let preflight = Preflight::default();
        let cases = [
            (
                assignment(&["python3"], &["gone.py"], at),
                format!("script {shown}/gone.py not found on n1"),
            ),
            (
                assignment(&["python3.99"], &["train.py"], at),
                format!("python3.99 not found in PATH ({shown}) on n1"),
            ),
            (
                assignment(&["/opt/no/python3"], &["train.py"], at),
                "/opt/no/python3 not found on n1".into(),
            ),
            (
                assignment(&["./train"], &["x"], at),
                format!("{shown}/./train not found on n1"),
            ),
            (
                assignment(&["python3"], &["t.py"], Path::new("/no/such")),
                "working directory /no/such not found on n1".into(),
            ),
        ];
        for (assignment, why) in cases {
            assert_eq!(check(&preflight, assignment, at).await, Err(why));
        }
        fs::set_permissions(at.join("train.py"), fs::Permissions::from_mode(0o644)).unwrap();
        let why = format!("{shown}/./train.py is not executable on n1");
        assert_eq!(
            check(&preflight, assignment(&["./train.py"], &["x"], at), at).await,
            Err(why)
        );
        assert_eq!(
            check(&preflight, assignment(&["python3"], &["train.py"], at), at).await,
            Ok(())
        );
        assert_eq!(
            check(&preflight, assignment(&["python3"], &["-m", "pkg"], at), at).await,
            Ok(())
        );
        assert_eq!(
            fs::read_to_string(at.join("asked")).unwrap(),
            "x\n",
            "asked once"
        );
    }

    #[tokio::test]
    async fn an_old_torch_may_not_be_rank_0_beside_the_store() {
        let dir = bench("echo 2.4.1");
        let at = dir.path();
        let alone = assignment(&["python3"], &["train.py"], at);
        assert_eq!(
            check(&Preflight::default(), alone.clone(), at).await,
            Ok(()),
            "it brings its own TCPStore"
        );
        let old = Assignment {
            node_count: 2,
            ..alone
        };
        let python = at.join("python3");
        let why = format!(
            "torch 2.4 of {} on n1 cannot be node rank 0 of several nodes on one host; torch 2.7 or later can, and any can with launch: exec",
            python.display()
        );
        assert_eq!(
            check(&Preflight::default(), old.clone(), at).await,
            Err(why)
        );
        let executed = Assignment {
            launch: Lane::Exec,
            ..old.clone()
        };
        assert_eq!(
            check(&Preflight::default(), executed, at).await,
            Ok(()),
            "no torchrun binds a port"
        );
        let other = Assignment {
            node_rank: 1,
            ..old
        };
        assert_eq!(check(&Preflight::default(), other, at).await, Ok(()));
    }

    #[test]
    fn our_processes_are_told_from_strays() {
        let mut sleep = std::process::Command::new("sleep");
        let mut ours = sleep
            .arg("1000")
            .env(torchrun::RUN_DIR, "/state/runs/a-g1")
            .spawn()
            .unwrap();
        // Before it executes its program, the child still has this test's environment.
        while fs::read_to_string(format!("/proc/{}/comm", ours.id()))
            .unwrap()
            .trim()
            != "sleep"
            || fs::read(format!("/proc/{}/environ", ours.id()))
                .unwrap()
                .is_empty()
        {
            std::thread::yield_now();
        }
        assert!(is_ours(ours.id(), Path::new("/state/runs")));
        assert!(!is_ours(ours.id(), Path::new("/other/runs")));
        ours.kill().unwrap();
        ours.wait().unwrap();
        assert!(is_ours(ours.id(), Path::new("/other/runs")), "gone");
    }

    #[tokio::test]
    async fn a_profile_read_otherwise_and_an_unfit_node_are_refused() {
        let dir = bench("echo 2.15.0 cpython 3.11 linux");
        let at = dir.path();
        let mut other = assignment(&["python3"], &["train.py"], at);
        other.profile_hash = "1".into();
        let why = check(&Preflight::default(), other, at).await.unwrap_err();
        assert!(why.starts_with("n1 reads the profile of this generation as f3da59462432cc74, the coordinator as 1: "), "{why}");
        let mut gone = assignment(&["python3"], &["train.py"], at);
        gone.gpus = vec!["GPU-1".into()];
        let why = check(&Preflight::default(), gone, at).await.unwrap_err();
        assert_eq!(
            why,
            "n1 is not fit for it: GPU-1 is not among this node's GPUs any more"
        );
    }

    #[tokio::test]
    async fn a_refusal_says_whose_doing_it_is() {
        let dir = bench("echo 2.15.0 cpython 3.11 linux");
        let at = dir.path();
        let due_to = async |change: &dyn Fn(&mut Assignment)| {
            let mut run = assignment(&["python3"], &["train.py"], at);
            change(&mut run);
            let refused = refusal(&Preflight::default(), run, at).await;
            refused.unwrap_err().due_to
        };
        assert_eq!(
            due_to(&|run| run.args = vec!["no.py".into()]).await,
            DueTo::Job
        );
        assert_eq!(
            due_to(&|run| run.command = vec!["no".into()]).await,
            DueTo::Job
        );
        assert_eq!(
            due_to(&|run| run.gpus = vec!["GPU-1".into()]).await,
            DueTo::Node
        );
        assert_eq!(missing(CONTAINER_GOES[1]), DueTo::Unknown);
    }

    #[tokio::test]
    async fn no_torch_and_no_python_are_told_apart() {
        let none = bench(
            "echo 'importlib.metadata.PackageNotFoundError: No package metadata was found for torch' >&2; exit 1",
        );
        let why = format!(
            "torch is not installed for {} on n1",
            none.path().join("python3").display()
        );
        let run = assignment(&["python3"], &["train.py"], none.path());
        assert_eq!(
            check(&Preflight::default(), run, none.path()).await,
            Err(why)
        );
        let broken = bench("echo 'Fatal Python error: init' >&2; exit 1");
        let python = broken.path().join("python3");
        let why = format!(
            "{} does not tell its torch version: Fatal Python error: init on n1",
            python.display()
        );
        let run = assignment(&["python3"], &["train.py"], broken.path());
        assert_eq!(
            check(&Preflight::default(), run, broken.path()).await,
            Err(why)
        );
    }
}
