//! What a job's interpreter has. The interpreter is asked, and its answer is remembered for as long
//! as it is true.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, Instant, SystemTime},
};

use muster_core::{
    nccl::stack::Stack,
    node::{account::Account, lane::Interpreter},
    run::{DueTo, Refusal},
};
use muster_runner::place::{Output, Program};

use crate::host::RunnerHost;

/// How long an interpreter may take to answer. It takes 60 ms from a local disk and many seconds
/// from a cold network file system. A slower one could not train either.
const ASK_TIMEOUT_MS: u64 = 60_000;
/// How long an answer stays valid. A re-form must not wait for a new answer, and a torch that was
/// put in front of the other is noticed the same day.
const ANSWER_KEPT: Duration = Duration::from_secs(4 * 3_600);
/// How many answers are remembered. A node uses a few interpreters.
const ANSWERS_MAX: usize = 64;
/// The most files that an answer may name. It names three, each on a line.
const FILES_MAX: usize = 8;

const QUESTION: &str = include_str!("ask.py");

/// Remembers what interpreters have said.
#[derive(Debug, Default)]
pub(super) struct Interpreters {
    /// A leaf cache. The lock is held only for a look, never across an await.
    said: Mutex<BTreeMap<Asked, (Instant, Answer)>>,
    /// The interpreters that were asked, with the environment of the last question.
    met: Mutex<BTreeMap<(PathBuf, Option<Account>), Met>>,
}

/// An interpreter of this node's runs.
#[derive(Clone, Debug)]
pub(crate) struct Met {
    pub(crate) python: PathBuf,
    /// The environment in which it was asked last.
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) answer: Answer,
    /// As whom. None: as the agent's user.
    pub(crate) account: Option<Account>,
}

/// What determines the answer, besides the files themselves: the interpreter, its modification
/// time, the variables that [`DECIDING`] names, and as whom it was asked.
type Asked = (
    PathBuf,
    Option<SystemTime>,
    [Option<String>; 5],
    Option<Account>,
);

/// Variables that determine where torch is looked for and which locale the interpreter takes.
const DECIDING: [&str; 5] = [
    "PYTHONPATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "PYTHONCOERCECLOCALE",
];

/// Major and minor version of torch.
pub(super) type Torch = (u32, u32);

#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) interpreter: Interpreter,
    pub(crate) stack: Stack,
    /// `LC_CTYPE` as the interpreter's children find it. In a C locale CPython sets it for them.
    pub(crate) ctype: Option<String>,
    /// The files that the answer was read from, with their times. An upgrade replaces them.
    read_from: Vec<(PathBuf, Option<SystemTime>)>,
}

impl Answer {
    /// Of a run whose framework is not torch: nothing is asked, and nothing depends on it.
    pub(super) fn unasked() -> Self {
        Self {
            interpreter: Interpreter {
                torch: (0, 0),
                build: String::new(),
                implementation: String::new(),
                python: (0, 0),
                system: String::new(),
                trial: None,
            },
            stack: Stack::default(),
            ctype: None,
            read_from: Vec::new(),
        }
    }

    /// The files that this interpreter consists of, with their times: the files that its answer was
    /// read from, and the folder with torch's distribution. That folder changes with each package
    /// that is installed into it. This blocks for a look at the disk.
    pub(crate) fn files(&self, host: &dyn RunnerHost) -> Vec<(PathBuf, Option<SystemTime>)> {
        let site = self
            .read_from
            .first()
            .and_then(|(distribution, _)| distribution.parent());
        let site = site.map(|folder| (folder.to_owned(), modified(host, folder)));
        self.read_from.iter().cloned().chain(site).collect()
    }
}

impl Answer {
    /// The files that it was read from, with their times.
    pub(crate) fn read_from(&self) -> &[(PathBuf, Option<SystemTime>)] {
        &self.read_from
    }

    /// Whether none of the files was replaced since.
    fn is_as_read(&self, host: &dyn RunnerHost) -> bool {
        let (files, then): (Vec<_>, Vec<_>) = self.read_from.iter().cloned().unzip();
        host.modified(&files) == then
    }
}

impl Interpreters {
    pub(super) async fn ask(
        &self,
        host: &dyn RunnerHost,
        python: &Path,
        env: &BTreeMap<String, String>,
        dir: &Path,
    ) -> Result<Answer, Refusal> {
        let key = (
            python.to_owned(),
            modified(host, python),
            DECIDING.map(|name| env.get(name).cloned()),
            host.account().cloned(),
        );
        let known = self
            .said
            .lock()
            .expect("nothing panics while it is held")
            .get(&key)
            .cloned();
        if let Some((asked, answer)) = known
            && asked.elapsed() < ANSWER_KEPT
            && answer.is_as_read(host)
        {
            return Ok(answer);
        }
        let mut answer = ask(host, python, env, dir).await?;
        answer.read_from.push((python.to_owned(), key.1));
        let mut answers = self.said.lock().expect("nothing panics while it is held");
        if answers.len() >= ANSWERS_MAX {
            answers.clear();
        }
        answers.insert(key, (Instant::now(), answer.clone()));
        drop(answers);
        let met = Met {
            python: python.to_owned(),
            env: env.clone(),
            answer: answer.clone(),
            account: host.account().cloned(),
        };
        let mut all = self.met.lock().expect("nothing panics while it is held");
        if all.len() >= ANSWERS_MAX {
            all.clear();
        }
        all.insert((met.python.clone(), met.account.clone()), met);
        Ok(answer)
    }

    pub(super) fn met(&self) -> Vec<Met> {
        let met = self.met.lock().expect("nothing panics while it is held");
        met.values().cloned().collect()
    }
}

fn modified(host: &dyn RunnerHost, file: &Path) -> Option<SystemTime> {
    host.modified(&[file.to_owned()]).pop().flatten()
}

async fn ask(
    host: &dyn RunnerHost,
    python: &Path,
    env: &BTreeMap<String, String>,
    dir: &Path,
) -> Result<Answer, Refusal> {
    let question = Program {
        program: python.to_owned(),
        args: vec!["-c".to_owned(), QUESTION.to_owned()],
        env: env.clone(),
        dir: dir.to_owned(),
        timeout_ms: ASK_TIMEOUT_MS,
    };
    let Output {
        stdout: said,
        stderr: complaint,
        ..
    } = host.run(&question).await?;
    if complaint.contains("PackageNotFoundError") {
        let why = format!("torch is not installed for {}", python.display());
        return Err(DueTo::Job.because(why));
    }
    answer(host, &said).ok_or_else(|| {
        let last = complaint.lines().last().unwrap_or("it said nothing");
        Refusal::from(format!(
            "{} does not tell its torch version: {last:.200}",
            python.display()
        ))
    })
}

fn answer(host: &dyn RunnerHost, said: &str) -> Option<Answer> {
    let mut lines = said.lines();
    let mut words = lines.next()?.split_whitespace();
    let installed = words.next()?;
    let torch = version(installed)?;
    let implementation = words.next().unwrap_or_default().to_owned();
    let python = words.next().and_then(version).unwrap_or_default();
    let system = words.next().unwrap_or_default().to_owned();
    let mut known = || {
        words
            .next()
            .filter(|word| *word != "-")
            .unwrap_or_default()
            .to_owned()
    };
    let stack = Stack {
        torch: known(),
        cuda: known(),
        nccl: known(),
        ..Stack::default()
    };
    // An older torch does not tell its whole version, so that of its installation stands for it.
    let build = match stack.torch.as_str() {
        "" => installed.to_owned(),
        whole => whole.to_owned(),
    };
    let ctype = Some(known()).filter(|ctype| !ctype.is_empty());
    let files: Vec<PathBuf> = lines.take(FILES_MAX).map(PathBuf::from).collect();
    let times = host.modified(&files);
    let read_from = files.into_iter().zip(times).collect();
    Some(Answer {
        interpreter: Interpreter {
            torch,
            build,
            implementation,
            python,
            system,
            trial: None,
        },
        stack,
        ctype,
        read_from,
    })
}

fn version(text: &str) -> Option<Torch> {
    let mut numbers = text.trim().split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use muster_core::node::torchrun::Launch;

    use super::*;
    use crate::host::tests::here;

    /// A site-packages folder with a torch that cannot be imported, and its dependencies.
    fn install(site: &Path, torch: &str, cuda: &str, nccl: Option<&str>) {
        let write = |name: String, text: String| {
            let file = site.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let release = torch.split('+').next().unwrap();
        let needs = nccl
            .map(|_| "Requires-Dist: nvidia-nccl-cu13==1.0; platform_system == \"Linux\"\n")
            .unwrap_or_default();
        write(
            format!("torch-{release}.dist-info/METADATA"),
            format!("Metadata-Version: 2.1\nName: torch\nVersion: {release}\n{needs}"),
        );
        write(
            "torch/__init__.py".into(),
            "raise SystemExit('imported')\n".into(),
        );
        write(
            "torch/version.py".into(),
            format!(
                "from typing import Optional\n__version__ = '{torch}'\ncuda: Optional[str] = {cuda}\nhip: Optional[str] = None\n"
            ),
        );
        // There is always a NCCL package, possibly one for another program.
        let nccl = nccl.unwrap_or("9.9.9");
        write(
            format!("nvidia_nccl_cu13-{nccl}.dist-info/METADATA"),
            format!("Metadata-Version: 2.1\nName: nvidia-nccl-cu13\nVersion: {nccl}\n"),
        );
    }

    fn launch(site: &Path, preload: &str) -> Launch {
        let words = [
            ("PYTHONPATH", site.to_str().unwrap()),
            ("LD_PRELOAD", preload),
        ];
        let env = words
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect();
        Launch {
            account: None,
            program: "python3".into(),
            args: Vec::new(),
            env,
            dir: site.to_str().unwrap().into(),
        }
    }

    /// The system's interpreter without its installed packages.
    fn python(at: &Path) -> PathBuf {
        let file = at.join("python3");
        fs::write(&file, "#!/bin/sh\nexec /usr/bin/env python3 -S \"$@\"\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file
    }

    #[tokio::test]
    async fn an_interpreter_says_what_it_has_without_importing_it() {
        let dir = tempfile::tempdir().unwrap();
        let (site, python) = (dir.path().join("site"), python(dir.path()));
        install(&site, "2.15.1+cu132", "'13.2'", Some("2.30.7"));
        let mut launch = launch(&site, "");
        launch
            .env
            .insert("PATH".into(), std::env::var("PATH").unwrap());
        let known = Interpreters::default();
        let ask = || async {
            known
                .ask(&here(), &python, &launch.env, Path::new(&launch.dir))
                .await
                .unwrap()
        };
        let Answer {
            interpreter, stack, ..
        } = ask().await;
        assert_eq!(
            (
                interpreter.torch,
                interpreter.implementation.as_str(),
                interpreter.system.as_str()
            ),
            ((2, 15), "cpython", "linux")
        );
        assert_eq!(
            stack,
            Stack {
                torch: "2.15.1+cu132".into(),
                cuda: "13.2".into(),
                nccl: "2.30.7".into(),
                ..Stack::default()
            }
        );
        // An upgrade replaces the files that the answer was read from.
        fs::remove_dir_all(&site).unwrap();
        install(&site, "2.16.0", "None", None);
        let stack = ask().await.stack;
        assert_eq!(
            stack,
            Stack {
                torch: "2.16.0".into(),
                ..Stack::default()
            },
            "a NCCL it does not need is not its own"
        );
    }

    #[tokio::test]
    async fn an_interpreter_says_which_locale_it_leaves_to_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let (site, python) = (dir.path().join("site"), python(dir.path()));
        install(&site, "2.15.1", "None", None);
        let known = Interpreters::default();
        for (variables, left) in [
            (&[][..], Some("C.UTF-8")),
            (&[("LANG", "C")], Some("C.UTF-8")),
            (&[("LANG", "C.UTF-8")], None),
            (&[("LC_ALL", "C")], None),
            (&[("LC_CTYPE", "POSIX")], Some("C.UTF-8")),
            (&[("LANG", "C"), ("PYTHONCOERCECLOCALE", "0")], None),
        ] {
            let mut launch = launch(&site, "");
            launch
                .env
                .insert("PATH".into(), std::env::var("PATH").unwrap());
            launch.env.extend(
                variables
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
            );
            assert_eq!(
                known
                    .ask(&here(), &python, &launch.env, Path::new(&launch.dir))
                    .await
                    .unwrap()
                    .ctype
                    .as_deref(),
                left,
                "{variables:?}"
            );
        }
    }

    #[test]
    fn an_answer_may_be_short() {
        let short = answer(&here(), "2.4.1\n").unwrap();
        assert_eq!(
            (
                short.interpreter.torch,
                short.interpreter.build.as_str(),
                short.stack
            ),
            ((2, 4), "2.4.1", Stack::default())
        );
        let full = answer(
            &here(),
            "2.15.0 cpython 3.11 linux 2.15.0+cpu - -\n/a b/torch\n",
        )
        .unwrap();
        assert_eq!(
            full.stack,
            Stack {
                torch: "2.15.0+cpu".into(),
                ..Stack::default()
            }
        );
        assert_eq!(full.interpreter.build, "2.15.0+cpu");
        assert_eq!(full.read_from, [(PathBuf::from("/a b/torch"), None)]);
        assert_eq!(full.ctype, None, "an agent's predecessor did not ask");
        assert_eq!(
            answer(&here(), "2.15.0 cpython 3.11 linux 2.15.0 - - C.UTF-8\n")
                .unwrap()
                .ctype
                .as_deref(),
            Some("C.UTF-8")
        );
        assert!(answer(&here(), "").is_none() && answer(&here(), "no version\n").is_none());
    }
}
