//! Which variables of the base environment the ranks get.

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

/// Variables of an image that no rank gets, because every launch has its own.
const OF_A_LAUNCH: [&str; 9] = [
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "CUDA_VISIBLE_DEVICES",
];
const OF_A_LAUNCH_PREFIXES: [&str; 5] =
    ["PET_", "MASTER_", "MUSTER_", "TORCHELASTIC_", "PYTHON_EXEC"];

/// Whether a launch takes this variable of its site's environment.
pub(super) fn passes(name: &str, env_is: EnvIs) -> bool {
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    match env_is {
        EnvIs::Agents => PASSED.contains(&name) || begins(&PASSED_PREFIXES),
        EnvIs::Images => !OF_A_LAUNCH.contains(&name) && !begins(&OF_A_LAUNCH_PREFIXES),
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
