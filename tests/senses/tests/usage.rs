//! The use of GPUs is part of the usage that an agent sends.

use std::path::PathBuf;

use muster_senses::{Eyes, Machine, QUICK};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_gpu_says_its_memory_and_how_busy_it_is() {
    let machine = Machine::new("4xl40s");
    let mut config = machine.config(QUICK, &[]);
    // Only the usage of this machine itself is looked at, so the driver alone is a fake.
    config.probes.sysroot = PathBuf::from("/");
    // The looks at use and the looks at the GPUs themselves come in any order.
    let eyes = Eyes::open(&config).await;
    let mut looks = eyes.usage();
    let seen = looks.wait_for(|look| look.as_ref().is_some_and(|look| !look.gpus.is_empty()));
    let seen = seen.await.unwrap().clone();
    let gpus = seen.unwrap().gpus.clone();
    let known = &eyes.report.gpus;
    assert_eq!(gpus.len(), known.len());
    for (used, gpu) in gpus.iter().zip(known) {
        assert_eq!(used.uuid, gpu.uuid);
        let memory = used.memory.unwrap();
        assert_eq!(memory.total, gpu.memory_bytes);
        assert!(memory.available > 0 && memory.available <= memory.total);
        assert!(used.busy_percent.is_some_and(|percent| percent <= 100));
    }
}
