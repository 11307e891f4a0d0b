//! Tells what was ended by force: ranks that a stop had to kill, processes that ranks had left
//! behind, and runners that did not obey. It decides nothing.
//!
//! A node says so in its reports. Each is told once, by the generation's record of whom it has told
//! of, so a coordinator that was restarted does not repeat it.

use std::time::Duration;

use crate::{
    fleet::{generation, job::GenerationRecord, job_turn::JobTurn},
    id::{Generation, NodeName},
    period,
    run::{Disobedience, Leftover, RunReport},
    spec::STOP_GRACE_MAX,
};

/// Events about the ranks of one node. A node of 8 GPUs has 8 ranks; one with hundreds of ranks
/// gets one more event that counts the others.
const RANKS_TOLD: usize = 16;

/// What a node's report says for the first time.
struct News {
    generation: Generation,
    node: NodeName,
    /// The node's ranks that a stop had to kill.
    killed: Vec<(u32, Duration)>,
    left: Vec<Leftover>,
    /// The runner did not obey and was not told of yet.
    disobedience: Option<Disobedience>,
    /// Nothing of the run is left.
    is_over: bool,
}

impl JobTurn<'_> {
    /// Writes the events about forced ends that were not written yet.
    pub(crate) fn tell_forced_ends(&mut self) {
        let generations = self.job.unproven_generations();
        let news: Vec<News> = generations
            .flat_map(|generation| {
                let reports = generation::reports(self.nodes, self.uid, generation);
                reports.filter_map(|(node, run)| news(generation, node, run?))
            })
            .collect();
        for news in news {
            self.tell_forced_end(&news);
            let mut generations = self.job.unproven_generations_mut();
            let Some(generation) = generations.find(|g| g.number == news.generation) else {
                continue;
            };
            if !news.left.is_empty() {
                generation.left_behind.insert(news.node.clone());
            }
            if news.disobedience.is_some() {
                generation.disobeyed.insert(news.node.clone());
            }
            if news.is_over {
                generation.forced.insert(news.node);
            }
        }
    }

    fn tell_forced_end(&mut self, news: &News) {
        let (node, number) = (&news.node, news.generation);
        if let Some(why) = &news.disobedience {
            let event = self.warn("RunnerKilled", did_not_obey(node, why));
            event.in_generation(number).on_node(node);
        }
        for (rank, grace) in news.killed.iter().take(RANKS_TOLD) {
            let within = period::format(*grace);
            let message = format!(
                "rank {rank} on {node} was killed: it had not ended within its stopGracePeriod of {within} after SIGTERM; {}",
                advice()
            );
            let event = self.warn("GraceOver", message);
            event.in_generation(number).on_node(node);
        }
        if let Some((first, grace)) = news.killed.get(RANKS_TOLD) {
            let more = news.killed.len() - RANKS_TOLD;
            let who = format!("{more} more ranks on {node}, from rank {first} on,");
            let message = were_killed(
                &who,
                &format!("their stopGracePeriod of {}", period::format(*grace)),
            );
            let event = self.warn("GraceOver", message);
            event.in_generation(number).on_node(node);
        }
        let told = |g: &GenerationRecord| g.number == number && g.left_behind.contains(node);
        let told = self.job.unproven_generations().any(told);
        let all: Vec<&Leftover> = news.left.iter().collect();
        let killed: Vec<&Leftover> = news.left.iter().filter(|left| left.killed).collect();
        if !told && killed.len() < all.len() {
            let grace = period::format(self.job.spec.stop_grace_period);
            let message = format!(
                "the ranks on {node} have ended and left behind: {}. What is left gets SIGTERM, and after the stopGracePeriod of {grace} SIGKILL. \
                 A script must wait for what it starts",
                names(&all)
            );
            let event = self.warn("LeftBehind", message);
            event.in_generation(number).on_node(node);
        }
        if news.is_over && !killed.is_empty() {
            let who = format!("{}, left behind by the ranks on {node},", names(&killed));
            let message = format!(
                "{who} had not ended within the stopGracePeriod after SIGTERM, so Muster has ended them by SIGKILL; let the script wait for what it starts"
            );
            let event = self.warn("GraceOver", message);
            event.in_generation(number).on_node(node);
        }
    }
}

fn news(generation: &GenerationRecord, node: &NodeName, run: &RunReport) -> Option<News> {
    if generation.forced.contains(node) {
        return None;
    }
    let is_over = run.phase.is_over();
    let ranks = run.ranks.iter().filter(|_| is_over);
    let killed: Vec<(u32, Duration)> = ranks
        .filter_map(|rank| Some((rank.rank, rank.killed_after?)))
        .collect();
    let first = !run.leftovers.is_empty() && !generation.left_behind.contains(node);
    let disobedience = run.disobedience.clone();
    let disobedience = disobedience.filter(|_| !generation.disobeyed.contains(node));
    let forced = is_over && run.leftovers.iter().any(|leftover| leftover.killed);
    let any = first || forced || disobedience.is_some() || !killed.is_empty();
    any.then(|| News {
        generation: generation.number,
        node: node.clone(),
        killed,
        left: run.leftovers.clone(),
        disobedience,
        is_over,
    })
}

fn did_not_obey(node: &NodeName, why: &Disobedience) -> String {
    let did = match why.answered {
        true => "still ended nothing",
        false => "did not even answer",
    };
    format!(
        "the runner on {node} was ordered to end its ranks with a grace of {}, and {} after that it {did}: the node kills it with everything below it. Its runner.log may say why; a slow or full disk is a usual cause",
        period::format(why.grace),
        period::format(why.late),
    )
}

fn were_killed(who: &str, within: &str) -> String {
    format!(
        "{who} were killed: they had not ended within {within} after SIGTERM; {}",
        advice()
    )
}

fn advice() -> String {
    let most = period::format(STOP_GRACE_MAX);
    format!("set stopGracePeriod to what saving takes, at most {most}")
}

/// `train.py (pid 7), sleep (pid 8)`.
pub(crate) fn names(left: &[&Leftover]) -> String {
    let names = left.iter();
    let names = names.map(|left| format!("{} (pid {})", left.program, left.pid));
    names.collect::<Vec<_>>().join(", ")
}
