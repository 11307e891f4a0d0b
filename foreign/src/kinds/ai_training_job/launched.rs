//! A job of a launcher, which runs horovodrun or mpirun, and of the nodes on which it starts ranks. It becomes
//! a job of framework mpi: the role launcher, and the other role under its own name.

use muster_core::spec::{Framework, LAUNCHER};

use super::{
    Job, Role, STYLE, Whole, edits,
    ends::{self, Fault},
    note, of_group, policy, processes, warn,
};
use crate::{
    draft::Converted,
    framework_draft::{FrameworkDraft, Group},
    launch::Launch,
    lends,
    mpirun::{self, Hosts, Range, Starter},
    roles::{self, Ends},
    tree::Field,
    verdict::Verdicts,
};

const HOROVOD: &str = "horovod";

/// The launcher, and the role that lends its nodes.
pub(super) struct Pair<'r, 't> {
    pub(super) launcher: &'r Role<'t>,
    pub(super) hosts: &'r Role<'t>,
}

/// `None`: the processes find each other by themselves. The error says why there is no such pair where the
/// job needs one.
pub(super) fn pair<'r, 't>(
    whole: &Whole<'_>,
    roles: &'r [Role<'t>],
) -> Result<Option<Pair<'r, 't>>, &'static str> {
    if processes(roles) <= 1 {
        return Ok(None);
    }
    let horovod = matches!(&whole.framework, Some((_, HOROVOD)));
    let (mut launchers, mut others) = (Vec::new(), Vec::new());
    for role in roles {
        match role.name {
            LAUNCHER => launchers.push(role),
            _ => others.push(role),
        }
    }
    let starts = |launcher: &Role<'_>| horovod || mpirun::starter(&launcher.pod).is_some();
    match (&launchers[..], &others[..]) {
        ([launcher], [hosts]) if starts(launcher) => Ok(Some(Pair { launcher, hosts })),
        ([launcher], [_, _, ..]) if starts(launcher) => Err(
            "has several roles beside the launcher, and all nodes on which it starts ranks must be of one role here",
        ),
        ([], _) if horovod => Err(
            "has no role launcher, which Muster needs for Horovod: a role of that name with one replica whose command runs horovodrun or mpirun",
        ),
        _ => Ok(None),
    }
}

pub(super) fn read(
    job: &Job<'_, '_>,
    whole: &Whole<'_>,
    launcher: &Role<'_>,
    hosts: &Role<'_>,
    log: &mut Verdicts,
) -> Option<Converted> {
    let starter = mpirun::starter(&launcher.pod);
    let elastic = starter.as_ref().is_some_and(Starter::is_elastic);
    of_job(whole, log);
    of_launcher(launcher, log);
    of_hosts(hosts, elastic, log);
    // Each gives its refusals before any of them counts.
    let launch = match launcher.has_pod {
        true => roles::start(&launcher.pod, STYLE, log),
        false => None,
    };
    let lends = match hosts.has_pod {
        true => lends::must_lend(&hosts.pod, log),
        false => None,
    };
    let slots = starter.as_ref().and_then(|starter| starter.slots(log));
    let per_node = match &slots {
        Some((slots, at)) => {
            log.taken(
                at,
                format!("procPerNode of the roles, from --slots-per-host {slots}"),
            );
            *slots
        }
        None => hosts.pod.gpus.max(1),
    };
    let slots = Hosts {
        nodes: hosts.replicas(),
        per_node,
        of_launcher: 0,
    };
    let sizes = sizes(whole, hosts, starter.as_ref(), slots, log);
    let ends = of_both(whole, launcher, hosts, elastic, log);
    let mut launch = launch.unwrap_or_else(Launch::unknown);
    let lends = lends.unwrap_or_else(Launch::unknown);
    mpirun::two_dashes(&launcher.pod, &mut launch, log);
    if !whole.is_refused(log) {
        log.warn(
        &launcher.pod.container,
        "is not told the variables of the roles, such as TRAINER_HOSTS: the hosts are in its hostfile and its discovery script",
    );
        if let Some(starter) = &starter {
            starter.say_restarts(log);
        }
        mpirun::say_in_memory(&launcher.pod, &launch, starter.as_ref(), log);
    }
    let launcher = of_group(launcher, launch);
    let hosts = of_group(hosts, lends);
    let groups = vec![
        Group {
            role: &launcher,
            name: LAUNCHER.into(),
            service: None,
            procs: Some(0),
            sizes: None,
            restarts_alone: false,
        },
        Group {
            role: &hosts,
            name: hosts.name.to_owned(),
            service: None,
            procs: Some(per_node),
            sizes,
            restarts_alone: false,
        },
    ];
    FrameworkDraft {
        kind: job.kind,
        meta: job.meta,
        framework: Framework::Mpi,
        groups,
        ends,
        run: &whole.run,
    }
    .finish(log)
}

fn of_job(whole: &Whole<'_>, log: &mut Verdicts) {
    if let Some((at, framework)) = &whole.framework {
        match *framework {
            HOROVOD => log.taken(at, "spec.framework: mpi"),
            _ => log.note(
                at,
                "is not needed: the launcher starts the ranks (spec.framework: mpi)",
            ),
        }
    }
    if let Some((at, on)) = &whole.tolerant {
        match on {
            true => log.note(at, "is so: Muster survives the loss of a node"),
            false => log.note(
                at,
                "is so: the size stays, and a node that is lost is replaced all the same",
            ),
        }
    }
    let plugin = "is not needed: there is no ssh here, and the launcher is told its hosts";
    note(&whole.spec, &["plugin"], plugin, log);
    let metrics =
        "have no effect: the job keeps its replicas; muster scale changes them, up to maxReplicas";
    warn(&whole.spec, &["metrics"], metrics, log);
    for (name, of_launcher) in [
        (
            "completePolicy",
            "the job is over when the launcher has succeeded",
        ),
        (
            "failPolicy",
            "the launcher's failure fails the job, unless a rule survives it",
        ),
    ] {
        match whole.spec.text(name, log) {
            Some((at, "Any")) => log.note(at, format!("is so: {of_launcher}")),
            Some((at, "All" | "None")) => log.warn(at, format!("has no effect: {of_launcher}")),
            Some((at, other)) => log.refuse(at, format!("is {other:?}, must be Any, All or None")),
            None => {}
        }
    }
}

fn of_launcher(launcher: &Role<'_>, log: &mut Verdicts) {
    let sizes = [&launcher.least_wanted, &launcher.most_wanted];
    if let Some((at, count)) = &launcher.replicas {
        match count {
            1 => log.taken(at, "spec.roles[0].replicas"),
            _ => log.refuse(at, format!("is {count}, must be 1: there is one launcher")),
        }
    }
    for (at, count) in sizes.into_iter().flatten() {
        match count {
            0 | 1 => log.note(at, "is so: there is one launcher"),
            _ => log.refuse(at, format!("is {count}, must be 1: there is one launcher")),
        }
    }
    common(launcher, log);
    for name in ["completePolicy", "failPolicy"] {
        match policy(&launcher.spec, name, log) {
            Some((at, "None")) => log.warn(at, "has no effect: the job ends with its launcher"),
            Some((at, _)) => log.note(at, "is so: the job ends with its launcher"),
            None => {}
        }
    }
}

fn of_hosts(hosts: &Role<'_>, elastic: bool, log: &mut Verdicts) {
    if let Some((at, _)) = &hosts.replicas {
        log.taken(at, "spec.roles[1].replicas");
    }
    common(hosts, log);
    for name in ["completePolicy", "failPolicy"] {
        if let Some((at, _)) = policy(&hosts.spec, name, log) {
            log.note(
                at,
                "is not asked: the nodes only lend themselves to the launcher",
            );
        }
    }
    if let Some((_, at)) = &hosts.policy {
        match elastic {
            true => log.note(at, "is not needed: a failed rank starts the launcher again, and a lost node is replaced"),
            false => log.note(at, "is not needed: the launcher's decides"),
        }
    }
}

/// What both roles say alike.
fn common(role: &Role<'_>, log: &mut Verdicts) {
    note(
        &role.spec,
        &["replicaType"],
        "is not needed: the launcher is known by its name",
        log,
    );
    if let Some(at) = role.spec.get("restartScope").filter(|at| !at.is_bare()) {
        scope(at, log);
    }
    edits(role, log);
}

/// The ranks are one world.
fn scope(at: &Field<'_>, log: &mut Verdicts) {
    match at.text(log) {
        Some("All") => log.note(at, "is so: all processes start again"),
        Some("Replica" | "Pod") => log.warn_once(
            at,
            "restartScope",
            "has no effect: the ranks are one world, so all processes start again",
        ),
        Some(other) => log.refuse(at, format!("is {other:?}, must be All, Replica or Pod")),
        None => {}
    }
}

fn scope_of_entry(at: Option<&Field<'_>>, _: Fault, log: &mut Verdicts) {
    if let Some(at) = at {
        scope(at, log);
    }
}

/// The least and the most nodes, if the size may change.
fn sizes(
    whole: &Whole<'_>,
    hosts: &Role<'_>,
    starter: Option<&Starter>,
    slots: Hosts,
    log: &mut Verdicts,
) -> Option<(i64, i64)> {
    let wanted = [&hosts.least_wanted, &hosts.most_wanted];
    let range = match starter.filter(|starter| starter.is_elastic()) {
        Some(starter) => Some(starter.range(slots, log)?),
        None => {
            if let Some(starter) = starter {
                starter.fits(slots, log);
            }
            None
        }
    };
    let Some(range) = range.filter(|_| whole.is_tolerant()) else {
        for (at, count) in wanted.into_iter().flatten() {
            match (whole.is_tolerant(), *count == slots.nodes) {
                (_, true) => log.note(at, "is so: the size stays"),
                (false, _) => log.note(at, "is not used, as upstream: faultTolerant is not true"),
                (true, _) => log.warn(
                    at,
                    "has no effect: the launcher's command is of one size; horovodrun with --host-discovery-script is not",
                ),
            }
        }
        return None;
    };
    Some((least(hosts, &range, log), most(hosts, &range, log)))
}

fn least(hosts: &Role<'_>, range: &Range, log: &mut Verdicts) -> i64 {
    let Some((at, wanted)) = &hosts.least_wanted else {
        return hosts.replicas();
    };
    match *wanted >= range.least {
        true => log.taken(at, "spec.roles[1].minReplicas"),
        false => log.warn(
            at,
            format!(
                "is {wanted}, and spec.roles[1].minReplicas is {}, {}. If fewer are enough, {}",
                range.least,
                range.why,
                range.instead()
            ),
        ),
    }
    range.least.max(*wanted)
}

fn most(hosts: &Role<'_>, range: &Range, log: &mut Verdicts) -> i64 {
    let Some((at, wanted)) = &hosts.most_wanted else {
        return hosts.replicas();
    };
    match range.most.map(|most| most.max(hosts.replicas())) {
        Some(most) if most < *wanted => {
            log.warn(
                at,
                format!("is {wanted}, and spec.roles[1].maxReplicas is {most}: --max-np leaves no rank for more nodes"),
            );
            most
        }
        _ => {
            log.taken(at, "spec.roles[1].maxReplicas");
            *wanted
        }
    }
}

/// What the failures of the launcher and of ranks mean.
fn of_both(
    whole: &Whole<'_>,
    launcher: &Role<'_>,
    hosts: &Role<'_>,
    elastic: bool,
    log: &mut Verdicts,
) -> Ends {
    let ends = ends::of(launcher, whole, &mut scope_of_entry, log);
    ends::say_retried(whole, &[launcher], log);
    let why = match elastic {
        true => "is so: a failed rank starts the launcher again, with any code",
        false => "is not needed: the launcher's decides",
    };
    for codes in ends::faults(hosts, whole, &mut scope_of_entry, log) {
        log.note(&codes.at, why);
    }
    if !elastic {
        if let Some((at, _)) = &hosts.limit {
            log.note(at, why);
        }
        return ends;
    }
    if let Some((at, _)) = &hosts.limit {
        log.taken(at, "the limit of spec.rules for failed ranks");
    }
    let limit = hosts.limit.as_ref().map(|(_, limit)| *limit);
    ends.of_launcher(LAUNCHER, hosts.name, limit)
}
