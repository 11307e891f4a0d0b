//! What a forked rank notes of its own start.

use super::*;

#[test]
fn a_rank_notes_its_start_and_sees_nothing_of_that() {
    let mut warm = Warm::new();
    fs::create_dir(warm.rig.dir.join("slow")).unwrap();
    let package = "import time\ntime.sleep(0.2)\nfrom . import inner\n";
    fs::write(warm.rig.dir.join("slow/__init__.py"), package).unwrap();
    fs::write(
        warm.rig.dir.join("slow/inner.py"),
        "import time\ntime.sleep(0.1)\n",
    )
    .unwrap();
    let script = warm.script(
        "import os, sys, time, importlib.util\n\
         from importlib.machinery import ModuleSpec\n\
         found = importlib.util.find_spec('slow')\n\
         import slow\n\
         specs = [found, slow.__spec__, slow.inner.__spec__]\n\
         assert all(type(spec) is ModuleSpec for spec in specs), specs\n\
         assert not any('marks' in vars(spec) for spec in specs)\n\
         fd = os.open('/dev/null', os.O_RDONLY)\n\
         print('step 1', fd, flush=True)\n\
         import wave\n\
         time.sleep(1000)\n",
    );
    let generation = warm.fork();
    generation.start(&script);
    let seen = |status: &muster_runner::wire::Status| {
        let phases = status.phases.clone().unwrap_or_default();
        phases.script_us.is_some() && phases.imports.is_some()
    };
    generation.client.until_stepping(2);
    let status = generation.client.until(seen);
    let phases = status.phases.unwrap();
    let (started, script_us) = (status.ranks[0].started_us, phases.script_us.unwrap());
    let first_step = status
        .ranks
        .iter()
        .filter_map(|rank| rank.first_step_us)
        .max();
    assert!(started <= script_us && script_us <= first_step.unwrap());
    let imports = phases.imports.unwrap();
    let slow = &imports.by[0];
    assert_eq!(slow.name, "slow", "{imports:?}");
    // Both sleeps, once each, and no more than there was time for.
    assert!(
        slow.us >= 300_000 && imports.us <= first_step.unwrap() - started,
        "{imports:?}"
    );
    assert_eq!((phases.gpu_us, phases.nccl), (None, None), "there is none");
    let log = fs::read_to_string(generation.dir.join("logs/rank-0.log")).unwrap();
    assert!(
        log.contains("step 1 3\n"),
        "the first file that a script opens: {log}"
    );
}
