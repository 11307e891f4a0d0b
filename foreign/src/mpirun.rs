//! What the launcher of an MPI world asks its hosts for: with how many ranks it begins, and whether
//! Horovod trains elastically in it. It reads commands, and never changes one.
//!
//! Source: Horovod 0.28.1, `horovod/runner/launch.py`, `gloo_run.py`, `elastic/driver.py`.

use std::fmt;

mod dashes;
mod horovod;
mod options;

pub(crate) use dashes::two_dashes;
use horovod::{OPTIONS, SWITCHES};

use crate::{
    launch::{self, Launch},
    pod::Pod,
    shell,
    tree::Field,
    verdict::Verdicts,
    words::{Known, Word},
};

/// Programs that start as many ranks as they are told.
const STARTERS: [&str; 6] = [
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "orterun",
    "prterun",
    HOROVODRUN,
];
const HOROVODRUN: &str = "horovodrun";

/// The scripts for which Muster puts its own (`mpi/launch.rs` of the runner).
const DISCOVERY: [&str; 2] = ["/etc/mpi/discover_hosts.sh", "/etc/edl/discover_hosts.sh"];

/// Bytes of a number, a path or a list of hosts.
const VALUE_MAX: usize = 4 << 10;

/// A text may name programs in any number, and each costs a look at all that follows.
const STARTERS_MAX: usize = 16;

const IN_MEMORY: &str = "is started again after a failed rank, a lost node or a change of size, with the hosts that are there then. \
     What its script keeps only in memory (state.commit()) is lost then: save the state to a file every so often, and load it at the start";

/// An option with a value.
#[derive(Clone, Debug)]
struct Given {
    text: String,
    at: Field<'static>,
}

impl Given {
    fn number(&self, log: &mut Verdicts) -> Option<i64> {
        match self.text.parse() {
            Ok(number) if number > 0 => Some(number),
            _ => {
                let text = &self.text;
                log.refuse(
                    &self.at,
                    format!("has {text:?} where horovodrun wants a number of ranks or slots; write the number itself"),
                );
                None
            }
        }
    }
}

/// Whether a command's first word is a program that starts ranks on the hosts.
pub(crate) fn is_starter(word: &str) -> bool {
    STARTERS.contains(&launch::stem(word))
}

/// Why no fewer nodes are enough.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Why {
    /// It begins with so many ranks.
    Ranks(i64),
    TwoHosts,
    HostsAreWritten,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Ranks(ranks) => write!(f, "because horovodrun begins with {ranks} ranks at least"),
            Why::TwoHosts => f.write_str(
                "because horovodrun begins with two hosts at least, unless --network-interfaces names the interface",
            ),
            Why::HostsAreWritten => f.write_str("because the hosts are written down"),
        }
    }
}

/// The program in a command that starts ranks on the hosts.
#[derive(Clone, Debug)]
pub(crate) struct Starter {
    program: String,
    /// Where it stands.
    at: Field<'static>,
    ranks: Option<Given>,
    /// It may start more ranks than there are slots.
    oversubscribes: bool,
    /// An option without its dashes, where the command of the ranks should stand.
    bare: Option<Given>,
    /// Horovod trains elastically.
    elastic: Option<Elastic>,
}

/// What horovodrun is told of the sizes of its world.
#[derive(Clone, Debug, Default)]
struct Elastic {
    least: Option<Given>,
    most: Option<Given>,
    slots: Option<Given>,
    script: Option<Given>,
    hosts: Option<Given>,
    hostfile: Option<Given>,
    /// The network's interface. Without it horovodrun compares two hosts to find one.
    interface: Option<Given>,
    /// An option for failures that Horovod itself survives.
    survives: Option<Given>,
}

/// The nodes on which ranks may be started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hosts {
    /// Without that of the launcher.
    pub(crate) nodes: i64,
    pub(crate) per_node: i64,
    /// Slots on the launcher's own node.
    pub(crate) of_launcher: i64,
}

impl Hosts {
    fn slots(self) -> i64 {
        self.nodes
            .saturating_mul(self.per_node)
            .saturating_add(self.of_launcher)
    }

    /// How many nodes have so many slots, with those of the launcher.
    fn nodes_for(self, ranks: i64) -> i64 {
        let ranks = (ranks - self.of_launcher).max(0);
        let per_node = self.per_node.max(1);
        (ranks / per_node + i64::from(ranks % per_node > 0)).max(1)
    }
}

/// How few nodes are enough, and how many are of use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) least: i64,
    pub(crate) why: Why,
    /// `--min-np`, else 1.
    ranks: i64,
    /// So few ranks also need the interface's name.
    by_interface: bool,
    /// `None`: any number.
    pub(crate) most: Option<i64>,
}

impl Range {
    /// What to change for fewer nodes.
    pub(crate) fn instead(&self) -> String {
        let ranks = self.ranks;
        let interface = "name the interface with --network-interfaces";
        match (self.why, self.by_interface) {
            (Why::Ranks(_), false) => {
                format!("write -np {ranks}, which uses all hosts that are there")
            }
            (Why::Ranks(_), true) => format!("write -np {ranks}, and {interface}"),
            (Why::TwoHosts, _) => interface.to_owned(),
            (Why::HostsAreWritten, _) => format!(
                "write --host-discovery-script {} in place of the hosts",
                DISCOVERY[0]
            ),
        }
    }
}

/// The program that starts the ranks. If there are several, one that trains elastically counts.
pub(crate) fn starter(pod: &Pod<'_>) -> Option<Starter> {
    let tokens: Vec<Word> = pod.words.iter().flat_map(tokens).collect();
    let places = (0..tokens.len()).filter(|at| is_starter(&tokens[*at].text));
    let places = places.take(STARTERS_MAX);
    let known = &pod.variables.known;
    let mut found: Vec<Starter> = places
        .map(|at| read(&tokens[at], &tokens[at + 1..], known))
        .collect();
    let best = found.iter().position(|starter| starter.elastic.is_some());
    let best = best.or_else(|| found.iter().position(|starter| starter.ranks.is_some()));
    (!found.is_empty()).then(|| found.swap_remove(best.unwrap_or(0)))
}

/// The tokens of a word that is the text of a shell, or the word.
fn tokens(word: &Word) -> Vec<Word> {
    let commands = shell::commands(&word.text);
    let of_text = |text: String| Word {
        text,
        ..word.clone()
    };
    match word.text.contains(char::is_whitespace)
        && commands.iter().flatten().any(|text| is_starter(text))
    {
        true => {
            let texts = commands.into_iter().flat_map(|mut words| {
                words.push(END.to_owned());
                words
            });
            texts.map(of_text).collect()
        }
        false => vec![word.clone()],
    }
}

/// Stands between two commands.
const END: &str = ";";

/// Reads the options that follow a starter.
fn read(program: &Word, options: &[Word], known: &Known) -> Starter {
    let given = |value: &Word| Given {
        text: resolved(&value.text, known),
        at: value.field(),
    };
    let name = launch::stem(&program.text);
    let mut starter = Starter {
        program: name.to_owned(),
        at: program.field(),
        ranks: None,
        oversubscribes: false,
        bare: None,
        elastic: None,
    };
    let options: Vec<&Word> = options.iter().take_while(|word| word.text != END).collect();
    if name != HOROVODRUN {
        let asked = options::read(&options);
        let by_env = |(name, value): (&String, &Option<String>)| {
            options::oversubscribes_by(name, value.as_deref().unwrap_or_default())
        };
        // hydra goes round its hosts as often as it must.
        starter.oversubscribes = asked.oversubscribes || asked.is_hydra || known.iter().any(by_env);
        starter.ranks =
            options::total(&asked, |word| resolved(&word.text, known)).map(|(text, at)| Given {
                text,
                at: at.field(),
            });
        return starter;
    }
    let mut elastic = Elastic::default();
    let mut rest = options.into_iter();
    while let Some(word) = rest.next() {
        // The first word that is no option is the command of the ranks.
        if !word.text.starts_with('-') {
            let option = format!("--{}", word.text);
            starter.bare = OPTIONS.contains(&&*option).then(|| given(word));
            break;
        }
        let (name, own) = match word.text.split_once('=') {
            Some((name, own)) => (name, Some(own)),
            None => (&*word.text, None),
        };
        if SWITCHES.contains(&name) {
            continue;
        }
        let value = match own {
            Some(own) => Some(Word {
                text: own.to_owned(),
                ..word.clone()
            }),
            None => rest.next().cloned(),
        };
        let Some(value) = value else { break };
        let field = match name {
            "-np" | "-n" | "--num-proc" => &mut starter.ranks,
            "--min-np" | "--min-num-proc" => &mut elastic.least,
            "--max-np" | "--max-num-proc" => &mut elastic.most,
            "--slots-per-host" => &mut elastic.slots,
            "--host-discovery-script" => &mut elastic.script,
            "-H" | "--hosts" => &mut elastic.hosts,
            "-hostfile" | "--hostfile" => &mut elastic.hostfile,
            "--network-interface" | "--network-interfaces" => &mut elastic.interface,
            "--reset-limit" | "--blacklist-cooldown-range" => &mut elastic.survives,
            _ => continue,
        };
        *field = Some(given(&value));
        if name == "--blacklist-cooldown-range" {
            rest.next();
        }
    }
    // launch.py, `_is_elastic`.
    let is_elastic = elastic.script.is_some() || elastic.least.is_some();
    starter.elastic = is_elastic.then_some(elastic);
    starter
}

/// A text that is the name of one of the container's variables is its value.
fn resolved(text: &str, known: &Known) -> String {
    let name = text.strip_prefix('$').unwrap_or_default();
    let name = name.trim_start_matches('{').trim_end_matches('}');
    match known.get(name) {
        Some(Some(value)) if value.len() <= VALUE_MAX => value.clone(),
        _ => text.to_owned(),
    }
}

impl Starter {
    /// Whether Horovod trains elastically.
    pub(crate) fn is_elastic(&self) -> bool {
        self.elastic.is_some()
    }

    /// The slots of each host as horovodrun is told them. They count if the discovery script names none.
    pub(crate) fn slots(&self, log: &mut Verdicts) -> Option<(i64, Field<'static>)> {
        let elastic = self.elastic.as_ref()?;
        let slots = elastic
            .slots
            .as_ref()
            .filter(|_| elastic.script.is_some())?;
        Some((slots.number(log)?, slots.at.clone()))
    }

    /// Says of a launcher without workers where its ranks are.
    pub(crate) fn say_alone(&self, log: &mut Verdicts) {
        log.warn(
            &self.at,
            format!(
                "{} has no workers: all its ranks run on the launcher's node",
                self.program
            ),
        );
    }

    /// Refuses a launcher that asks for more ranks than there are slots.
    pub(crate) fn fits(&self, hosts: Hosts, log: &mut Verdicts) {
        self.has_dashes(log);
        let ranks = self.ranks.as_ref();
        if let Some(asked) = ranks.and_then(|ranks| ranks.text.parse::<i64>().ok()) {
            self.has_slots(asked, hosts, log);
        }
    }

    fn has_dashes(&self, log: &mut Verdicts) {
        if let Some(bare) = &self.bare {
            let word = &bare.text;
            log.refuse(
                &bare.at,
                format!(
                    "horovodrun takes {word} for the command of the ranks; did you mean --{word}?"
                ),
            );
        }
    }

    /// hydra, where the job names it, goes round its hosts as often as it must.
    pub(crate) fn is_of_hydra(&mut self) {
        self.oversubscribes = true;
    }

    fn has_slots(&self, asked: i64, hosts: Hosts, log: &mut Verdicts) -> bool {
        if asked <= hosts.slots() {
            return true;
        }
        if self.oversubscribes {
            log.note(
                &self.at,
                format!("may start {asked} ranks on {} slots", hosts.slots()),
            );
            return true;
        }
        let nodes = hosts.nodes + i64::from(hosts.of_launcher > 0);
        log.refuse(
            &self.at,
            format!(
                "asks {} for {asked} ranks, and {nodes} nodes with {} slots each have {}",
                self.program,
                hosts.per_node,
                hosts.slots()
            ),
        );
        false
    }

    /// With how many nodes an elastic world can begin, which is each time anew. `nodes` are those that
    /// the file asks for. `None`: it was refused.
    pub(crate) fn range(&self, hosts: Hosts, log: &mut Verdicts) -> Option<Range> {
        let elastic = self.elastic.as_ref()?;
        let before = log.refused();
        self.has_dashes(log);
        self.finds_hosts(elastic, log);
        let ranks = match &self.ranks {
            Some(ranks) => ranks.number(log),
            None => {
                log.refuse(
                    &self.at,
                    "horovodrun has no -np and does not start without it: write the number of ranks with which it may begin",
                );
                None
            }
        };
        let number = |given: &Option<Given>, log: &mut Verdicts| match given {
            Some(given) => given.number(log),
            None => None,
        };
        let (at_least, at_most) = (number(&elastic.least, log), number(&elastic.most, log));
        let ranks = ranks.filter(|_| log.refused() == before)?;
        // horovodrun waits for -np slots, and gives no world below --min-np its ranks.
        let begins = at_least.map_or(ranks, |least| least.max(ranks));
        if !self.has_slots(begins, hosts, log) {
            return None;
        }
        let two = match elastic.interface.is_some() && elastic.script.is_some() {
            true => 1,
            false => 2 - i64::from(hosts.of_launcher > 0),
        };
        if two > hosts.nodes {
            log.refuse(
                &self.at,
                "horovodrun waits for two hosts before it begins, and there is one; with --host-discovery-script and --network-interfaces it begins with one",
            );
            return None;
        }
        let by_ranks = hosts.nodes_for(begins);
        let (least, why) = match elastic.script.is_none() && elastic.hosts.is_some() {
            // They do not come and go.
            true => (hosts.nodes, Why::HostsAreWritten),
            false if two > by_ranks => (two, Why::TwoHosts),
            false => (by_ranks, Why::Ranks(begins)),
        };
        let most = match why {
            Why::HostsAreWritten => Some(least),
            _ => at_most.map(|most| hosts.nodes_for(most.max(begins))),
        };
        Some(Range {
            least,
            why,
            ranks: at_least.unwrap_or(1),
            by_interface: hosts.nodes_for(at_least.unwrap_or(1)) < two,
            most,
        })
    }

    /// Refuses a horovodrun that does not learn the hosts of the job.
    fn finds_hosts(&self, elastic: &Elastic, log: &mut Verdicts) {
        match &elastic.script {
            Some(script) if !DISCOVERY.iter().any(|known| script.text.contains(known)) => {
                log.refuse(
                    &script.at,
                    format!(
                        "asks {:?} for hosts, and only Muster knows those of the job: write --host-discovery-script {}",
                        script.text, DISCOVERY[0]
                    ),
                );
            }
            None if elastic.hostfile.is_none() && elastic.hosts.is_none() => log.refuse(
                &self.at,
                format!(
                    "horovodrun is told --min-np and no hosts, so it knows only its own: add --host-discovery-script {}",
                    DISCOVERY[0]
                ),
            ),
            _ => {}
        }
    }

    /// Says why fewer nodes are not enough, to a user who has only `-np` and `--min-np` to say so.
    pub(crate) fn say_least(&self, range: &Range, hosts: Hosts, log: &mut Verdicts) {
        let at = self.ranks.as_ref().map_or(&self.at, |ranks| &ranks.at);
        let Range {
            least, why, ranks, ..
        } = range;
        log.taken(at, format!("spec.roles[1].minReplicas: {least}, {why}"));
        let given = self
            .elastic
            .as_ref()
            .and_then(|elastic| elastic.least.as_ref());
        if let Some(given) = given.filter(|_| hosts.nodes_for(*ranks) < *least) {
            log.warn(
                &given.at,
                format!(
                    "--min-np {ranks} has no effect: horovodrun starts again at each change of size, and needs {least} nodes then. If fewer are enough, {}",
                    range.instead()
                ),
            );
        }
    }

    /// Says what becomes of `--max-np`.
    pub(crate) fn say_most(&self, most: i64, log: &mut Verdicts) {
        let given = self
            .elastic
            .as_ref()
            .and_then(|elastic| elastic.most.as_ref());
        match given {
            Some(given) => log.taken(
                &given.at,
                format!("spec.roles[1].maxReplicas: {most}, from --max-np {}", given.text),
            ),
            None => log.note(
                &self.at,
                format!("horovodrun has no --max-np, so there are never more nodes than now (spec.roles[1].maxReplicas: {most})"),
            ),
        }
    }

    /// Says what differs from Horovod's own elasticity.
    pub(crate) fn say_restarts(&self, log: &mut Verdicts) {
        let survives = self
            .elastic
            .as_ref()
            .and_then(|elastic| elastic.survives.as_ref());
        if let Some(given) = survives {
            log.warn(
                &given.at,
                "--reset-limit and --blacklist-cooldown-range have no effect: after a failure horovodrun itself is started again",
            );
        }
    }
}

/// Warns of a command that may count on what survivors remember. It is started again instead.
pub(crate) fn say_in_memory(
    pod: &Pod<'_>,
    launch: &Launch,
    starter: Option<&Starter>,
    log: &mut Verdicts,
) {
    let elastic = starter.is_some_and(Starter::is_elastic);
    if elastic || launch.mentions("discover_hosts.sh") {
        log.warn(&pod.container, IN_MEMORY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_counted_whole() {
        let hosts = |of_launcher| Hosts {
            nodes: 3,
            per_node: 2,
            of_launcher,
        };
        let nodes = |ranks, of_launcher| hosts(of_launcher).nodes_for(ranks);
        assert_eq!([nodes(1, 0), nodes(2, 0), nodes(3, 0)], [1, 1, 2]);
        assert_eq!([nodes(3, 2), nodes(1, 2), hosts(2).slots()], [1, 1, 8]);
    }
}
