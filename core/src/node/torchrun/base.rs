//! Which variables of the base environment the ranks get.

use crate::spec::is_of_a_launch;

/// What a site's environment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnvIs {
    /// The agent's own. Ranks get only what concerns the user, the locale and places.
    Agents,
    /// That of the image that workers live in. Ranks get all that is not a launch's own.
    Images,
}

/// Variables of the agent's own environment that ranks get: the user, the locale, and the places of
/// programs and libraries. Every other variable is the agent's own or does harm: torchrun reads
/// every flag from `PET_<FLAG>`, and a stale RANK or MASTER_ADDR changes what a script does.
const PASSED: [&str; 10] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
];
const PASSED_PREFIXES: [&str; 2] = ["LC_", "SSL_CERT_"];

/// Whether a launch takes this variable of its site's environment.
pub(super) fn passes(name: &str, env_is: EnvIs) -> bool {
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    match env_is {
        EnvIs::Agents => PASSED.contains(&name) || begins(&PASSED_PREFIXES),
        EnvIs::Images => !is_of_a_launch(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_image_all_passes_that_is_not_a_launchs_own() {
        let of = |env_is| {
            let names = [
                "HOME",
                "LC_ALL",
                "HF_HOME",
                "PET_NNODES",
                "RANK",
                "MASTER_PORT",
                "TORCH_ELASTIC_WORKER_IDENTICAL",
            ];
            names
                .into_iter()
                .filter(move |name| passes(name, env_is))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(EnvIs::Agents), ["HOME", "LC_ALL"]);
        assert_eq!(of(EnvIs::Images), ["HOME", "LC_ALL", "HF_HOME"]);
    }
}
