//! How many nodes a job had, and what it did, over its whole life: the figures of one drawing.

use muster_proto::v1::{Incident, Job};

use crate::{incidents, state, words};

/// The drawing's inner width and height, without the texts beside it.
pub(crate) const WIDTH: u64 = 1000;
pub(crate) const HEIGHT: u64 = 120;
const TICKS: u64 = 5;

/// A stretch of time in which a job did one thing with so many nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) from_us: u64,
    pub(crate) to_us: u64,
    pub(crate) nodes: u32,
    /// A class of the style: training, recovering, starting, waiting.
    pub(crate) did: &'static str,
}

pub(crate) struct Timeline {
    pub(crate) bars: Vec<Bar>,
    pub(crate) marks: Vec<Mark>,
    pub(crate) ticks: Vec<Tick>,
    pub(crate) most: u32,
}

pub(crate) struct Bar {
    pub(crate) x: String,
    pub(crate) width: String,
    pub(crate) y: u64,
    pub(crate) height: u64,
    pub(crate) did: &'static str,
    pub(crate) title: String,
}

pub(crate) struct Mark {
    pub(crate) x: String,
    pub(crate) number: u32,
    pub(crate) title: String,
}

pub(crate) struct Tick {
    pub(crate) x: u64,
    pub(crate) text: String,
}

pub(crate) fn of(job: &Job, incidents: &[Incident], dropped: u32, now_us: u64) -> Timeline {
    let (start, end) = life(job, now_us);
    let stretches = stretches(job, incidents, now_us);
    let all = end.saturating_sub(start).max(1);
    let x = |at: u64| at.clamp(start, end).saturating_sub(start) as f64 * WIDTH as f64 / all as f64;
    let most = stretches.iter().map(|s| s.nodes).max().unwrap_or(0).max(1);
    let bars = stretches.iter().map(|stretch| {
        // A stretch without nodes is a low band, so that it can be seen.
        let height = match stretch.nodes {
            0 => 6,
            nodes => u64::from(nodes) * HEIGHT / u64::from(most),
        };
        let (from, to) = (x(stretch.from_us), x(stretch.to_us));
        Bar {
            x: format!("{from:.1}"),
            width: format!("{:.1}", (to - from).max(0.8)),
            y: HEIGHT - height,
            height,
            did: stretch.did,
            title: format!(
                "{} on {} for {}, from +{}",
                stretch.did,
                words::count(stretch.nodes.into(), "node"),
                words::span(stretch.to_us - stretch.from_us),
                words::span(stretch.from_us - start),
            ),
        }
    });
    let marks = incidents
        .iter()
        .zip(dropped + 1..)
        .map(|(incident, number)| Mark {
            x: format!("{:.1}", x(incident.at_unix_us)),
            number,
            title: format!("#{number} {}: {}", incident.cause, incident.message),
        });
    let ticks = (0..=TICKS).map(|i| Tick {
        x: i * WIDTH / TICKS,
        text: format!("+{}", words::span(all * i / TICKS)),
    });
    Timeline {
        bars: bars.collect(),
        marks: marks.collect(),
        ticks: ticks.collect(),
        most,
    }
}

/// When a job was submitted, and when it ended or until when it is known.
fn life(job: &Job, now_us: u64) -> (u64, u64) {
    let finished = job.status.as_ref().map_or(0, |s| s.finished_unix_us);
    let end = if finished > 0 { finished } else { now_us };
    (job.created_unix_us, end.max(job.created_unix_us))
}

/// What a job did one after the other, without gaps, from its submission on.
pub(crate) fn stretches(job: &Job, incidents: &[Incident], now_us: u64) -> Vec<Stretch> {
    let (start, end) = life(job, now_us);
    let trains = job.status.as_ref().is_some_and(|s| s.nodes_running > 0);
    let mut stretches: Vec<Stretch> = Vec::new();
    let mut add = |from_us: u64, to_us: u64, nodes: u32, did: &'static str| {
        if from_us < to_us {
            stretches.push(Stretch {
                from_us,
                to_us,
                nodes,
                did,
            });
        }
    };
    let at = |incident: &Incident| incident.at_unix_us.clamp(start, end);
    add(start, incidents.first().map_or(end, at), 0, "waiting");
    for (i, incident) in incidents.iter().enumerate() {
        let (from, next) = (at(incident), incidents.get(i + 1).map(at));
        let until = next.unwrap_or(end).max(from);
        let measured = incidents::measured_us(incident);
        // Nothing was measured to its end: it lasts until what comes next, or until now.
        let lasted = match incident.total_us {
            Some(us) => us,
            None if next.is_none() && !trains && !state::is_over(job) => u64::MAX,
            None => measured,
        };
        let back = from.saturating_add(lasted).min(until);
        let did = match (incident.to_generation, incident.from_generation) {
            (0, _) => "waiting",
            (_, 0) => "starting",
            _ => "recovering",
        };
        add(from, back, incident.to_nodes, did);
        let after = if incident.to_generation == 0 {
            "waiting"
        } else {
            "training"
        };
        add(back, until, incident.to_nodes, after);
    }
    stretches
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::JobStatus;

    use super::*;

    fn job(finished_unix_us: u64, nodes_running: u32) -> Job {
        Job {
            created_unix_us: 1_000,
            status: Some(JobStatus {
                finished_unix_us,
                nodes_running,
                ..JobStatus::default()
            }),
            ..Job::default()
        }
    }

    fn incident(at_unix_us: u64, nodes: u32, total_us: Option<u64>) -> Incident {
        Incident {
            at_unix_us,
            from_generation: 1,
            to_generation: 2,
            to_nodes: nodes,
            total_us,
            ..Incident::default()
        }
    }

    fn short(stretches: &[Stretch]) -> Vec<(u64, u64, u32, &'static str)> {
        let short = |s: &Stretch| (s.from_us, s.to_us, s.nodes, s.did);
        stretches.iter().map(short).collect()
    }

    #[test]
    fn a_life_has_no_gaps() {
        let first = Incident {
            from_generation: 0,
            ..incident(1_500, 3, Some(500))
        };
        let story = [first, incident(4_000, 2, Some(100))];
        let seen = stretches(&job(0, 2), &story, 9_000);
        assert_eq!(
            short(&seen),
            [
                (1_000, 1_500, 0, "waiting"),
                (1_500, 2_000, 3, "starting"),
                (2_000, 4_000, 3, "training"),
                (4_000, 4_100, 2, "recovering"),
                (4_100, 9_000, 2, "training"),
            ]
        );
    }

    #[test]
    fn what_has_not_come_back_is_not_training() {
        let story = [incident(2_000, 2, None)];
        let seen = stretches(&job(0, 0), &story, 9_000);
        assert_eq!(seen.last().unwrap().did, "recovering");
        assert_eq!(seen.last().unwrap().to_us, 9_000);
    }

    #[test]
    fn an_end_ends_the_drawing_and_clocks_that_jumped_do_not_leave_it() {
        let story = [
            incident(100, 2, Some(10)),
            incident(99_000, 2, Some(u64::MAX)),
        ];
        let seen = stretches(&job(5_000, 0), &story, 9_000);
        assert!(seen.iter().all(|s| s.from_us >= 1_000 && s.to_us <= 5_000));
        let drawn = of(&job(5_000, 0), &story, 7, 9_000);
        assert_eq!(drawn.marks[1].number, 9);
        assert_eq!(drawn.marks[1].x, "1000.0");
    }

    #[test]
    fn a_job_of_which_nothing_is_known_can_be_drawn() {
        let drawn = of(&Job::default(), &[], 0, 0);
        assert!(drawn.bars.is_empty());
    }
}
