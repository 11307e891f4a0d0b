//! What the last start of a job has imported itself, in `muster describe job`.

use muster_proto::v1;

use super::explain::{millis, phases};

/// The most packages that are named. A member reports 8.
const NAMED: usize = 3;

/// The imports of the member where they took longest, since all wait for that one. None if nobody saw
/// any, as where torchrun starts the ranks.
pub(super) fn of(members: &[v1::MemberStatus]) -> Option<String> {
    let seen = || {
        let of = |member: &v1::MemberStatus| Some((member.node.clone(), member.imports.clone()?));
        members.iter().filter_map(of)
    };
    let (node, imports) = seen().max_by_key(|(_, imports)| imports.us)?;
    let more = match seen().count() {
        1 => String::new(),
        all => format!(", the most of {all} members"),
    };
    let named = &imports.by[..imports.by.len().min(NAMED)];
    let time = millis(imports.us);
    Some(format!("{time} on {node}{more}{}", phases::imports(named)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node: &str, imports: &[(&str, u64, &str)]) -> v1::MemberStatus {
        let one = |(name, us, why): &(&str, u64, &str)| v1::Import {
            name: (*name).into(),
            us: *us,
            why: (*why).into(),
        };
        v1::MemberStatus {
            node: node.into(),
            imports: Some(v1::Imports {
                us: imports.iter().map(|(_, us, _)| us).sum(),
                by: imports.iter().map(one).collect(),
            }),
            ..v1::MemberStatus::default()
        }
    }

    #[test]
    fn the_slowest_member_is_told_with_the_reasons_of_its_dearest_packages() {
        let lightning = ("lightning", 617_784, "imports x, which asks for RANK");
        let rest = [("a", 3_000, ""), ("b", 2_000, ""), ("c", 1_000, "")];
        let slow = [&[lightning][..], &rest].concat();
        let fast = member("node-1", &rest);
        assert_eq!(
            of(&[fast, member("node-2", &slow)]).unwrap(),
            "623.784 ms on node-2, the most of 2 members  lightning 617.784 ms (imports x, which asks for RANK), a 3.000 ms, b 2.000 ms"
        );
        assert_eq!(of(&[member("node-1", &[])]).unwrap(), "0.000 ms on node-1");
        assert_eq!(of(&[v1::MemberStatus::default()]), None);
    }
}
