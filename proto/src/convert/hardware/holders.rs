//! Which pods hold GPUs, between core's types and the wire.

use muster_core::node_report::holders::{HOLDERS_MAX, Holder, Holders};

use crate::{
    convert::{
        Malformed,
        session::bounds::{NAME_MAX, count, required_text},
    },
    v1,
};

pub(in crate::convert) fn holders_to_wire(holders: &Holders) -> Option<v1::GpuHolders> {
    let holder = |holder: &Holder| v1::GpuHolder {
        gpu: holder.gpu.clone(),
        namespace: holder.namespace.clone(),
        pod: holder.pod.clone(),
    };
    let known = match holders {
        Holders::NotAsked => return None,
        Holders::Unknown => false,
        Holders::Known(_) => true,
    };
    Some(v1::GpuHolders {
        known,
        holders: holders.all().iter().map(holder).collect(),
    })
}

pub(in crate::convert) fn holders_from_wire(
    field: &str,
    wire: Option<v1::GpuHolders>,
) -> Result<Holders, Malformed> {
    let Some(v1::GpuHolders { known, holders }) = wire else {
        return Ok(Holders::NotAsked);
    };
    let field = format!("{field}.holders");
    count(&field, holders.len(), HOLDERS_MAX)?;
    if !known {
        return Ok(Holders::Unknown);
    }
    let read = |(i, holder): (usize, v1::GpuHolder)| {
        let text =
            |name: &str, text| required_text(&format!("{field}[{i}].{name}"), text, NAME_MAX);
        Ok(Holder {
            gpu: text("gpu", holder.gpu)?,
            namespace: text("namespace", holder.namespace)?,
            pod: text("pod", holder.pod)?,
        })
    };
    let all = holders.into_iter().enumerate().map(read);
    let mut all = all.collect::<Result<Vec<_>, Malformed>>()?;
    // Readers rely on it, whatever an agent of another version does.
    all.sort();
    all.dedup();
    Ok(Holders::Known(all))
}
