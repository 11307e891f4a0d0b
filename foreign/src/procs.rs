//! How many ranks a node has. A GPU is not a process: a plain program is one, torchrun says how many.

use crate::{
    launch::{By, Given, Launch},
    ranks::Procs,
    tree::Field,
    verdict::Verdicts,
    words::Word,
};

/// The fields that say how many ranks a node has.
const SAID: [&str; 3] = ["nprocPerNode", "nProcPerNode", "numProcPerNode"];

/// The ranks on each node. `said` is what the job says beside the command, with its place, and
/// `default` what its operator tells torchrun if the job says nothing. `None`: it was refused.
pub(crate) fn count(
    launch: &Launch,
    said: Option<(Procs, Field<'_>)>,
    default: Procs,
    gpus: i64,
    at: &Field<'_>,
    log: &mut Verdicts,
) -> Option<i64> {
    // A launcher that stays reads such a number itself.
    if let (Some(_), Some((Procs::Count(count), at))) = (&launch.stays, &said) {
        log.taken(at, "spec.procPerNode");
        return Some(*count);
    }
    if launch.by == By::Itself {
        return match launch.broken {
            // Whether torchrun is in it is not known.
            true => Some(1),
            false => Some(plain(said, log)),
        };
    }
    let flag = launch.procs.as_ref().map(Given::field);
    let (procs, at) = match (flag, said) {
        (Some((flag, at)), said) => {
            if let Some((said, said_at)) = said {
                match said == flag {
                    true => log.note(&said_at, "says the same as the command"),
                    false => log.note(&said_at, "is not used: the command says another number"),
                }
            }
            (flag, at)
        }
        (None, Some(said)) => said,
        // It may be in the part that was refused.
        (None, None) if launch.broken || log.doubts(&SAID) => return Some(1),
        (None, None) => (unsaid(launch.by, default, gpus, at, log), at.clone()),
    };
    match procs {
        Procs::Count(count) => {
            match gpus > 0 && count > gpus {
                true => log.warn(
                    &at,
                    format!("is {count} ranks on a node, and it has {gpus} GPUs for them; a rank that takes the GPU of its number finds none"),
                ),
                false => log.taken(&at, "spec.procPerNode"),
            }
            Some(count)
        }
        Procs::Gpu if gpus == 0 => {
            log.refuse(
                &at,
                "asks for one rank per GPU, and the job asks for no GPU",
            );
            None
        }
        Procs::Gpu | Procs::Auto if gpus > 0 => {
            log.taken(&at, "spec.procPerNode: one for each GPU");
            Some(gpus)
        }
        Procs::Gpu | Procs::Auto => {
            log.warn(
                &at,
                "means one rank for each CPU of the node where there is no GPU; here it is one rank. Give the number",
            );
            Some(1)
        }
        Procs::Cpu => {
            log.refuse(
                &at,
                "asks for one rank per CPU, which depends on the node; give the number",
            );
            None
        }
    }
}

fn plain(said: Option<(Procs, Field<'_>)>, log: &mut Verdicts) -> i64 {
    match said {
        Some((Procs::Count(count), at)) if count > 1 => {
            log.warn(
                &at,
                format!("upstream, a command without torchrun is one process on each node; here it is {count} ranks"),
            );
            count
        }
        Some((_, at)) => {
            log.taken(
                &at,
                "spec.procPerNode: a command without torchrun is one process",
            );
            1
        }
        None => 1,
    }
}

/// What a launcher does if nobody tells it a number.
fn unsaid(by: By, default: Procs, gpus: i64, at: &Field<'_>, log: &mut Verdicts) -> Procs {
    match by {
        By::Torchelastic if gpus > 1 => {
            log.warn(
                at,
                format!("torchelastic starts one rank for each of {gpus} GPUs, torch.distributed.run only one; here it is one for each. Give --nproc_per_node"),
            );
            Procs::Count(gpus)
        }
        By::Deepspeed if gpus > 0 => Procs::Count(gpus),
        By::Deepspeed => Procs::Count(1),
        _ => default,
    }
}

impl<T: Copy> Given<T> {
    /// The value, and the field in which it stands.
    pub(crate) fn field(&self) -> (T, Field<'static>) {
        (self.value, Word::at(self.place, &self.path).field())
    }
}
