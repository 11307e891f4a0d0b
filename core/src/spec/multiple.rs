//! Jobs whose replicas go together in groups of equal size (`multipleOf`): the stages of a pipeline, groups of experts, tensor
//! parallelism over nodes. It knows which sizes such a job can have. [`crate::fleet`] asks for no other.

use serde::{Deserialize, Serialize};

use super::{JobSpec, errors::Errors, limits::NODES_MAX};

/// The number of members is always a multiple of this. 1: any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Multiple(u32);

impl Default for Multiple {
    fn default() -> Self {
        Self(1)
    }
}

impl Multiple {
    /// 0 counts as 1.
    pub fn of(number: u32) -> Self {
        Self(number.max(1))
    }

    pub fn get(self) -> u32 {
        self.0.max(1)
    }

    pub fn is_any(&self) -> bool {
        self.get() == 1
    }

    /// The largest multiple that is not above this.
    pub fn within(self, members: u32) -> u32 {
        members / self.get() * self.get()
    }
}

impl JobSpec {
    /// The largest size that is not above this, of those that the job can have by its `multipleOf`. Roles of a fixed size have
    /// it, and the elastic one has a multiple of its own.
    pub fn size_within(&self, members: u32) -> u32 {
        let (fixed, multiple) = self.fixed_and_multiple();
        fixed + multiple.within(members.saturating_sub(fixed))
    }

    /// What is wrong with this size, if the job cannot have it: a clause after the field's path. The sizes that it names
    /// are between `minReplicas` and `maxReplicas`.
    pub fn no_size(&self, members: u32) -> Option<String> {
        let below = self.size_within(members);
        if below == members {
            return None;
        }
        let (fixed, multiple) = self.fixed_and_multiple();
        let near = [below, below.saturating_add(multiple.get())];
        let near = near.map(i64::from);
        let (min, max) = (self.min_replicas.into(), self.max_replicas.into());
        let beside = match fixed {
            0 => String::new(),
            _ => format!(" beside the {fixed} of the other roles"),
        };
        Some(no_multiple(
            members.into(),
            multiple,
            &beside,
            near,
            min..=max,
        ))
    }

    fn fixed_and_multiple(&self) -> (u32, Multiple) {
        if self.roles.is_empty() {
            return (0, self.multiple_of);
        }
        let elastic = |role: &&super::Role| role.min_replicas < role.max_replicas;
        let elastic = self.roles.iter().find(elastic);
        let all: u32 = self.roles.iter().map(|role| role.min_replicas).sum();
        let own = elastic.map_or(0, |role| role.min_replicas);
        (
            all - own,
            elastic.map_or(Multiple::default(), |role| role.multiple_of),
        )
    }
}

impl Errors {
    /// Checks `multipleOf`, and that the sizes beside it are multiples. Those that are left out follow the others.
    pub(super) fn multiple(
        &mut self,
        at: &str,
        multiple: Option<i64>,
        sizes: [(&str, Option<u32>); 3],
        lowest: i64,
    ) -> Multiple {
        let path = format!("{at}.multipleOf");
        let multiple = self.number(&path, multiple.unwrap_or(1), 1, NODES_MAX);
        let multiple = Multiple::of(multiple as u32);
        for (field, size) in sizes {
            let Some(size) = size.filter(|size| multiple.within(*size) != *size) else {
                continue;
            };
            let below = i64::from(multiple.within(size));
            let near = [below, below + i64::from(multiple.get())];
            let size = size.into();
            let message = no_multiple(size, multiple, "", near, lowest..=NODES_MAX);
            self.add(format!("{at}.{field}"), message);
        }
        multiple
    }
}

fn no_multiple(
    size: i64,
    multiple: Multiple,
    beside: &str,
    near: [i64; 2],
    allowed: std::ops::RangeInclusive<i64>,
) -> String {
    let near = near.into_iter().filter(|near| allowed.contains(near));
    let near: Vec<String> = near.map(|near| near.to_string()).collect();
    let nearest = match near.is_empty() {
        true => "no such size is allowed".to_owned(),
        false => format!("give {}", near.join(" or ")),
    };
    format!(
        "is {size}, must be a multiple of {} (multipleOf){beside}: {nearest}",
        multiple.get()
    )
}

#[cfg(test)]
mod tests;
