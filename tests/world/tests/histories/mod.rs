//! What the tests of seeds share.

use std::{ops::Range, time::Instant};

use muster_world::{Options, Size, Story, log, shrink};

/// A history that breaks a rule is made smaller, told, and written to a file.
pub(crate) fn no_seed_breaks_a_rule(size: Size, seeds: Range<u64>) {
    let options = Options {
        size,
        ..Options::default()
    };
    let begun = Instant::now();
    for seed in seeds.clone() {
        if muster_world::run(seed, &options).violation.is_some() {
            let (cut, _) =
                shrink::shrink(seed, &options).expect("the same seed breaks the same rule");
            let smaller = Options { cut, ..options };
            let path =
                std::env::temp_dir().join(format!("muster-world-{}-{seed}.jsonl", size.name()));
            log::write(&path, seed, &smaller).expect("a temporary file can be written");
            let story = Story::tell(seed, &smaller).expect("with its log it breaks the same rule");
            panic!("{story}\ntold by: muster replay {}", path.display());
        }
    }
    println!(
        "{seeds:?}: {} seeds in {:.1} s",
        size.name(),
        begun.elapsed().as_secs_f64()
    );
}
