//! Variables that only newer versions of torchrun set for their ranks. Lanes without torchrun set all
//! that the newest one does, less these.

/// Each with the first torch that sets it.
const SINCE: [(&str, (u32, u32)); 1] = [
    // What `--signals-to-handle` says (`torch/distributed/launcher/api.py` of 2.10.0; 2.9.0 has none).
    ("TORCHELASTIC_SIGNALS_TO_HANDLE", (2, 10)),
];

/// The variables that torchrun of this torch does not set. `build`: its whole version. One that cannot
/// be read counts as the newest.
pub fn lacks(build: &str) -> Vec<String> {
    let mut numbers = build.split('.').map_while(|part| part.parse::<u32>().ok());
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
        return Vec::new();
    };
    let newer = SINCE.iter().filter(|(_, since)| (major, minor) < *since);
    newer.map(|(name, _)| (*name).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_torchrun_sets_fewer_variables() {
        let signals = ["TORCHELASTIC_SIGNALS_TO_HANDLE"];
        for older in ["2.8.0+cu128", "2.4.1", "2.9.0a0+5228986.nv25.09"] {
            assert_eq!(lacks(older), signals, "{older}");
        }
        for newer in ["2.10.0", "2.15.0+cu132", "2.16.0.dev20261101", "", "main"] {
            assert!(lacks(newer).is_empty(), "{newer}");
        }
    }
}
