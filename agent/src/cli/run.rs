//! `berth run`: the agent, and `berth reset`: its end.

use std::io;

use tracing_subscriber::{EnvFilter, fmt};

use super::ask::Failure;
use crate::{
    app,
    config::{Config, Facts, KubeletFlags, Settings, ignored},
    document::Faults,
    own_log, sys,
};

/// Runs the agent until it is told to stop.
pub(super) fn run(flags: KubeletFlags) -> Result<(), Failure> {
    let (config, shown) = config(flags)?;
    app::run(config, &shown).map_err(|error| Failure::Failed(format!("failed to {error:#}")))
}

/// Ends and removes every pod of this agent, while it does not run.
pub(super) fn reset(flags: KubeletFlags) -> Result<(), Failure> {
    let (config, _shown) = config(flags)?;
    app::reset(config).map_err(|error| Failure::Failed(format!("failed to {error:#}")))
}

/// The configuration, and what the server shows of it.
fn config(flags: KubeletFlags) -> Result<(Config, serde_json::Value), Failure> {
    // Before there is a second thread, which is that of the log.
    sys::give_memory_back();
    own_log::start().map_err(unstarted)?;
    let settings = Settings::load(flags).and_then(Settings::read_containerd).map_err(wrong)?;
    begin_log(&settings);
    for ignored in ignored(&settings) {
        tracing::warn!(place = %ignored.place, "{} is understood, but not yet acted on", ignored.name);
    }
    let unread = settings.unread_node_ips();
    if !unread.is_empty() {
        tracing::warn!(?unread, "what of --node-ip is no address is left out");
    }
    let unread = settings.unread_cluster_dns();
    if !unread.is_empty() {
        tracing::warn!(?unread, "what of clusterDNS is no address is left out");
    }
    let left_out = settings.left_out_of_tls();
    if !left_out.is_empty() {
        tracing::warn!(?left_out, "what of tlsCipherSuites and tlsCurvePreferences is not there is left out");
    }
    let facts = Facts::gather(&settings.flags.root_dir).map_err(|error| Failure::from_error(&error))?;
    if settings.containerd.enable_selinux && facts.selinux_contexts.is_none() {
        tracing::warn!(
            "containerd's enable_selinux does nothing: no SELinux policy is loaded on this machine"
        );
    }
    let config = settings.resolve(&facts).map_err(unfit)?;
    Ok((config, settings.shown()))
}

fn unstarted(error: io::Error) -> Failure {
    Failure::Failed(format!("failed to start the thread of the log: {error}"))
}

/// What is wrong with a configuration, as a failure.
pub(super) fn wrong(faults: Faults) -> Failure {
    Failure::Usage(format!("the configuration is wrong\n{faults}"))
}

/// What of a configuration does not go with this machine, as a failure.
fn unfit(faults: Faults) -> Failure {
    Failure::Usage(format!("the configuration does not fit this machine\n{faults}"))
}

/// Levels of klog: up to 1 state changes, from 4 decisions, from 6 everything. The client of the API server would show answers that it
/// cannot read, and with them what is secret; whoever asked says that they cannot be read. The library of HTTP/2 would write a line
/// for each odd frame, and a container that is probed may send nothing else.
fn begin_log(settings: &Settings) {
    let logging = settings.kubelet.logging.clone().unwrap_or_default();
    let level = match logging.verbosity.unwrap_or(0) {
        0..=3 => "info,kube_client=error,h2=error",
        4..=5 => "info,kube_client=error,h2=error,berth=debug,berth_core=debug,berth_cni=debug",
        _ => "debug,kube_client=error,h2=error,berth=trace,berth_core=trace,berth_cni=trace",
    };
    let subscriber = fmt().with_env_filter(EnvFilter::new(level)).with_writer(own_log::lines);
    if logging.format.as_deref() == Some("json") {
        subscriber.json().init();
    } else {
        subscriber.with_ansi(false).init();
    }
}
