//! Variables whose values are in files of this node: only the job's processes get the values.

use std::path::Path;

use muster_runner::{env_file, wire::StartSpec};

/// The most bytes of all these values together.
const VALUES_MAX: usize = 256 << 10;

/// The spec with the values of these files in its environment.
pub(crate) fn with_values(spec: &StartSpec) -> Result<StartSpec, String> {
    let (mut spec, mut bytes) = (spec.clone(), 0);
    for (name, path) in &spec.env_files {
        let wrong = |why| format!("env {name}: {path}: {why}");
        let value = env_file::value(Path::new(path)).map_err(wrong)?;
        bytes += value.len();
        spec.env.insert(name.clone(), value);
    }
    if bytes > VALUES_MAX {
        return Err(format!(
            "values from files have {bytes} bytes, at most {VALUES_MAX} are allowed"
        ));
    }
    Ok(spec)
}
