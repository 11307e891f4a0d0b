//! Variables whose values are in files of this node: only the job's processes get the values.

use std::collections::BTreeMap;
use std::path::Path;

use muster_runner::{env_file, wire::StartSpec};

/// The most bytes of all these values of one member together.
const VALUES_MAX: usize = 256 << 10;

/// The spec with the values of these files in its environment.
pub(crate) fn with_values(spec: &StartSpec) -> Result<StartSpec, String> {
    let mut spec = spec.clone();
    read(&spec.env_files, &mut spec.env)?;
    for member in &mut spec.members {
        read(&member.env_files, &mut member.env)?;
    }
    Ok(spec)
}

fn read(
    files: &BTreeMap<String, String>,
    env: &mut BTreeMap<String, String>,
) -> Result<(), String> {
    let mut bytes = 0;
    for (name, path) in files {
        let wrong = |why| format!("env {name}: {path}: {why}");
        let value = env_file::value(Path::new(path)).map_err(wrong)?;
        bytes += value.len();
        env.insert(name.clone(), value);
    }
    if bytes > VALUES_MAX {
        return Err(format!(
            "values from files have {bytes} bytes, at most {VALUES_MAX} are allowed"
        ));
    }
    Ok(())
}
