//! Notices ranks below a rank: a torchrun that a script starts makes a world of its own, which neither the
//! TCPStore nor the coordinator sees form.
//!
//! It reads the environment of processes below a rank while the register lists them, so it makes no search
//! of its own. A rank below a rank has RANK and WORLD_SIZE and another MASTER_PORT than the generation. A
//! world that meets at our TCPStore is none of its own, whoever has started its ranks. What a process
//! sets for itself after its start is not seen. It reports once and judges nothing.

use std::collections::BTreeMap;
use std::fs;

use muster_runner::procfs::{self, Stat};
use muster_runner::wire::NestedWorld;

/// Processes whose environment is read in one look. A read takes some 20 µs, and a look of the register
/// at least as much for every ten processes of the machine.
const A_LOOK: usize = 32;

/// Reads in the life of a run. A launcher in a script starts its ranks soon, and a job that makes new
/// processes all the time need not be watched for days.
const IN_ALL: usize = 2_048;

/// How often the same process is read. Between fork and exec it shows the environment of its parent.
const LOOKS: u8 = 2;

/// Generations of processes between a rank and what it has started. Real trees have four.
const DEPTH: usize = 32;

#[derive(Default)]
pub(crate) struct Below {
    /// Processes that were read, by pid and start time, and how often.
    read: BTreeMap<(i32, u64), u8>,
    reads: usize,
    pub(crate) found: Option<NestedWorld>,
}

/// What is read of a process.
pub(crate) trait Processes {
    /// Its environment when it started, or nothing if it has ended.
    fn environment(&self, pid: i32) -> Vec<u8>;
    /// Its words.
    fn words(&self, pid: i32) -> Vec<String>;
}

/// The processes of this machine.
pub(crate) struct Proc;

impl Processes for Proc {
    fn environment(&self, pid: i32) -> Vec<u8> {
        procfs::environment(pid).unwrap_or_default()
    }

    fn words(&self, pid: i32) -> Vec<String> {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = words
            .split(|byte| *byte == 0)
            .filter(|word| !word.is_empty());
        words
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect()
    }
}

impl Below {
    /// Looks through the processes below this runner. `ranks` are the living ranks with their pids, and
    /// `port` is the one of the generation's TCPStore. True: it has just found ranks below a rank.
    pub(crate) fn look(
        &mut self,
        all: &[Stat],
        ranks: &[(u32, i32)],
        port: Option<&str>,
        processes: &impl Processes,
    ) -> bool {
        if self.found.is_some() || self.reads >= IN_ALL {
            return false;
        }
        let parents: BTreeMap<i32, i32> = all.iter().map(|stat| (stat.pid, stat.ppid)).collect();
        let mut reads = 0;
        for stat in all {
            if ranks.iter().any(|(_, pid)| *pid == stat.pid) {
                continue;
            }
            let Some((rank, path)) = path_to(stat.pid, ranks, &parents) else {
                continue;
            };
            let times = self.read.entry((stat.pid, stat.start_time)).or_default();
            if *times >= LOOKS {
                continue;
            }
            if reads >= A_LOOK || self.reads >= IN_ALL {
                break;
            }
            *times += 1;
            (reads, self.reads) = (reads + 1, self.reads + 1);
            let Some(world_size) = world_of_its_own(&processes.environment(stat.pid), port) else {
                continue;
            };
            let launcher = path.iter().find_map(|pid| launcher(&processes.words(*pid)));
            // A helper that a rank runs on its own, as an evaluation, may have such variables, too.
            if launcher.is_none() && world_size < 2 {
                continue;
            }
            self.found = Some(NestedWorld {
                rank,
                pid: stat.pid,
                launcher: launcher.unwrap_or_default().to_owned(),
                world_size,
            });
            return true;
        }
        // What has ended need not be remembered.
        self.read.retain(|(pid, _), _| parents.contains_key(pid));
        false
    }
}

/// The rank above a process, and the processes from its parent up to that rank.
fn path_to(
    pid: i32,
    ranks: &[(u32, i32)],
    parents: &BTreeMap<i32, i32>,
) -> Option<(u32, Vec<i32>)> {
    let mut path = Vec::new();
    let mut at = pid;
    while path.len() < DEPTH {
        at = *parents.get(&at)?;
        path.push(at);
        if let Some((rank, _)) = ranks.iter().find(|(_, pid)| *pid == at) {
            return Some((*rank, path));
        }
    }
    None
}

/// The size of the world that a process was started for, if it meets elsewhere than at this port.
fn world_of_its_own(environment: &[u8], port: Option<&str>) -> Option<u32> {
    let value = |name: &str| {
        let mut variables = environment.split(|byte| *byte == 0);
        let value = variables
            .find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        std::str::from_utf8(value).ok()
    };
    let elsewhere = value("MASTER_PORT")? != port?;
    value("RANK")?.parse::<u32>().ok()?;
    let size = value("WORLD_SIZE")?.parse().ok()?;
    elsewhere.then_some(size)
}

/// The launcher that a process is.
fn launcher(words: &[String]) -> Option<&'static str> {
    const MODULES: [(&str, &str); 4] = [
        ("torch.distributed.run", "torchrun"),
        ("torch.distributed.launch", "torchrun"),
        ("accelerate.commands.launch", "accelerate"),
        ("deepspeed.launcher.launch", "deepspeed"),
    ];
    const PROGRAMS: [&str; 3] = ["torchrun", "accelerate", "deepspeed"];
    let stem = |word: &String| word.rsplit('/').next().unwrap_or_default().to_owned();
    // The program is the first word, or the script of the interpreter that runs it.
    let mut first = words.iter().take(8).filter(|word| !word.starts_with('-'));
    let program = first.by_ref().take(2).find_map(|word| {
        let stem = stem(word);
        PROGRAMS.into_iter().find(|program| *program == stem)
    });
    program.or_else(|| {
        let pairs = words.windows(2).take(8);
        pairs.into_iter().find_map(|pair| {
            let module = (pair[0] == "-m").then_some(&pair[1])?;
            let known = MODULES.iter().find(|(known, _)| known == module)?;
            Some(known.1)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Environments and words by pid, and how often each environment was read.
    #[derive(Default)]
    struct Fake {
        environments: BTreeMap<i32, String>,
        words: BTreeMap<i32, String>,
        reads: std::cell::RefCell<Vec<i32>>,
    }

    impl Processes for Fake {
        fn environment(&self, pid: i32) -> Vec<u8> {
            self.reads.borrow_mut().push(pid);
            let text = self.environments.get(&pid).cloned().unwrap_or_default();
            text.replace(' ', "\0").into_bytes()
        }

        fn words(&self, pid: i32) -> Vec<String> {
            let words = self.words.get(&pid).cloned().unwrap_or_default();
            words.split_whitespace().map(str::to_owned).collect()
        }
    }

    fn stat(pid: i32, ppid: i32) -> Stat {
        Stat {
            pid,
            state: b'S',
            ppid,
            session: pid,
            threads: 1,
            start_time: 1,
        }
    }

    const RANKS: [(u32, i32); 2] = [(4, 10), (5, 20)];

    /// Rank 5 has started `words`, and below that is a process with this environment.
    fn found(words: &str, environment: &str) -> Option<NestedWorld> {
        let all = [stat(10, 1), stat(20, 1), stat(21, 20), stat(22, 21)];
        let fake = Fake {
            environments: BTreeMap::from([(22, environment.to_owned())]),
            words: BTreeMap::from([(20, "bash run.sh".into()), (21, words.to_owned())]),
            ..Fake::default()
        };
        let mut below = Below::default();
        let news = below.look(&all, &RANKS, Some("20001"), &fake);
        assert_eq!(news, below.found.is_some());
        below.found
    }

    #[test]
    fn a_world_that_meets_elsewhere_is_found_with_its_launcher() {
        for (words, launcher) in [
            (
                "/usr/bin/python3 /opt/bin/torchrun --nnodes 1 a.py",
                "torchrun",
            ),
            ("python3 -u -m torch.distributed.run a.py", "torchrun"),
            ("python3 /opt/bin/accelerate launch a.py", "accelerate"),
            ("torchrun a.py", "torchrun"),
            ("python3 start.py --launcher torchrun", ""),
        ] {
            let world = found(words, "A=1 RANK=0 WORLD_SIZE=2 MASTER_PORT=29500");
            let must = NestedWorld {
                rank: 5,
                pid: 22,
                launcher: launcher.into(),
                world_size: 2,
            };
            assert_eq!(world, Some(must), "{words}");
        }
        // torchrun's default is one process.
        let alone = found("torchrun a.py", "RANK=0 WORLD_SIZE=1 MASTER_PORT=29500");
        assert_eq!(alone.map(|world| world.world_size), Some(1));
    }

    #[test]
    fn what_belongs_to_the_world_or_is_none_is_left_alone() {
        for (words, environment) in [
            // A data loader, which has what its rank has.
            ("python3 train.py", "RANK=5 WORLD_SIZE=6 MASTER_PORT=20001"),
            // Ranks that meet at the generation's TCPStore are its world.
            ("torchrun a.py", "RANK=9 WORLD_SIZE=12 MASTER_PORT=20001"),
            ("torchrun a.py", "PATH=/bin"),
            ("torchrun a.py", "RANK=0 MASTER_PORT=29500"),
            ("torchrun a.py", "RANK=x WORLD_SIZE=2 MASTER_PORT=29500"),
            // A server that a rank runs by itself.
            ("python3 serve.py", "RANK=0 WORLD_SIZE=1 MASTER_PORT=29500"),
        ] {
            assert_eq!(found(words, environment), None, "{words} {environment}");
        }
        // Beside the ranks, such as torchrun of the lane cold, nothing is read.
        let fake = Fake::default();
        let all = [stat(9, 1), stat(10, 9), stat(20, 9)];
        assert!(!Below::default().look(&all, &RANKS, Some("20001"), &fake));
        assert_eq!(*fake.reads.borrow(), [0; 0]);
    }

    #[test]
    fn a_process_is_read_twice_and_all_of_them_within_bounds() {
        let fake = Fake::default();
        let mut below = Below::default();
        let all = [stat(10, 1), stat(11, 10)];
        for _ in 0..5 {
            below.look(&all, &RANKS, Some("20001"), &fake);
        }
        assert_eq!(*fake.reads.borrow(), [11, 11]);
        // The pid comes again with another process.
        let again = Stat {
            start_time: 2,
            ..stat(11, 10)
        };
        below.look(&[stat(10, 1), again], &RANKS, Some("20001"), &fake);
        assert_eq!(fake.reads.borrow().len(), 3);
        let crowd: Vec<Stat> = (100..300).map(|pid| stat(pid, 10)).collect();
        let crowd = [vec![stat(10, 1)], crowd].concat();
        below.look(&crowd, &RANKS, Some("20001"), &fake);
        assert_eq!(fake.reads.borrow().len(), 3 + A_LOOK);
        for turn in 0..200 {
            let crowd = crowd.iter().skip(1).map(|stat| Stat {
                start_time: 10 + turn,
                ..*stat
            });
            let crowd: Vec<Stat> = [stat(10, 1)].into_iter().chain(crowd).collect();
            below.look(&crowd, &RANKS, Some("20001"), &fake);
        }
        assert_eq!(fake.reads.borrow().len(), IN_ALL);
        assert!(below.read.len() <= crowd.len() * 200);
    }
}
