//! The whole-node tests: one program, each test in a lab of its own.

mod admission;
mod allocatable;
mod api_away;
mod api_changes;
mod api_debug;
mod api_deletion;
mod api_faults;
mod api_kills;
mod api_pods;
mod api_resizes;
mod api_rights;
mod api_status;
mod api_streams;
mod as_kubelet;
mod bad_input;
mod behind;
mod by_ctr;
mod canary;
mod certificates;
mod certificates_end;
mod cgroup_files;
mod chaos;
mod checkpoint;
mod claims;
mod cli;
mod clock_steps;
mod cluster;
mod cluster_node;
mod collection;
mod controllers;
mod cpu_time;
mod crash;
mod dead_fs;
mod demo;
mod empty_dirs;
mod escapes;
mod examples;
mod fake_containerd;
mod families;
mod few_threads;
mod fidelity;
mod fixtures;
mod full_disk;
mod handlers;
mod hooks;
mod image_volumes;
mod images;
mod interrupted;
mod iptables;
mod kills;
mod kit;
mod kubeadm;
mod lab;
mod large_image;
mod lifecycle;
mod limits;
mod lives;
mod neighbours;
mod network_upgrade;
mod plugins;
mod probes;
mod propagation;
mod pull_secrets;
mod pulls;
mod reboot;
mod registries;
mod relay;
mod restart_all;
mod restarts;
mod runtimes;
mod scores;
mod seccomp;
mod security;
mod server;
mod service;
mod shim;
mod silent;
mod snapshotters;
mod soak;
mod stalls;
mod stock;
mod strangers;
mod suite;
mod swept;
mod systemd;
mod tailer;
mod told;
mod unanswered;
mod unpack;
mod upgrade;
mod users;
mod versions;
mod volumes;

use std::process::ExitCode;

fn main() -> ExitCode {
    let all = lab::tests().into_iter().chain(of_clusters()).chain(of_nodes());
    suite::main(all.chain(last().into_iter().flatten()).collect())
}

/// Beside an API server.
fn of_clusters() -> impl Iterator<Item = suite::Test> {
    let all = [
        cluster::tests(),
        cluster_node::tests(),
        certificates::tests(),
        controllers::tests(),
        service::tests(),
        iptables::tests(),
        api_pods::tests(),
        api_resizes::tests(),
        api_streams::tests(),
        families::tests(),
        as_kubelet::tests(),
        claims::tests(),
        clock_steps::tests(),
        api_deletion::tests(),
        api_rights::tests(),
        api_faults::tests(),
        api_away::tests(),
        api_changes::tests(),
        admission::tests(),
        api_kills::tests(),
        kubeadm::tests(),
    ];
    all.into_iter().flatten()
}

/// Of pods of manifests, and of what they run on.
fn of_nodes() -> impl Iterator<Item = suite::Test> {
    let all = [
        fixtures::tests(),
        shim::tests(),
        snapshotters::tests(),
        checkpoint::tests(),
        kills::tests(),
        by_ctr::tests(),
        empty_dirs::tests(),
        escapes::tests(),
        examples::tests(),
        cgroup_files::tests(),
        limits::tests(),
        cpu_time::tests(),
        allocatable::tests(),
        swept::tests(),
        lifecycle::tests(),
        cli::tests(),
        security::tests(),
        seccomp::tests(),
        scores::tests(),
        volumes::tests(),
        image_volumes::tests(),
        fidelity::tests(),
        probes::tests(),
        propagation::tests(),
        plugins::tests(),
        network_upgrade::tests(),
        neighbours::tests(),
        images::tests(),
        registries::tests(),
        strangers::tests(),
        pull_secrets::tests(),
        pulls::tests(),
        unpack::tests(),
        runtimes::tests(),
        handlers::tests(),
        bad_input::tests(),
        restarts::tests(),
        few_threads::tests(),
        full_disk::tests(),
        reboot::tests(),
        upgrade::tests(),
        versions::tests(),
        interrupted::tests(),
        silent::tests(),
        stalls::tests(),
        unanswered::tests(),
        behind::tests(),
        chaos::tests(),
        demo::tests(),
        crash::tests(),
    ];
    all.into_iter().flatten()
}

/// Those that begin last.
fn last() -> [Vec<suite::Test>; 10] {
    [
        api_status::tests(),
        api_debug::tests(),
        hooks::tests(),
        users::tests(),
        server::tests(),
        soak::tests(),
        systemd::tests(),
        collection::tests(),
        restart_all::tests(),
        tailer::tests(),
    ]
}
