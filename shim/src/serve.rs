//! `serve`: sets the process up and runs the loop until the machine ends it.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use nix::sys::prctl;
use nix::unistd::setsid;
use thiserror::Error;

use crate::args::Args;
use crate::shim::{Home, Shim};
use crate::start::{tell, tell_ready};
use crate::{oom_score, sys};

#[derive(Debug, Error)]
pub(crate) enum ServeError {
    #[error("serve: -socket-fd is missing; containerd starts this program, with start")]
    NoSocket,
    #[error("take over the listening socket")]
    Socket(#[source] io::Error),
    #[error("set up the process")]
    Process(#[source] nix::Error),
    #[error("find the bundle")]
    Bundle(#[source] io::Error),
    #[error("tell that the shim serves")]
    Ready(#[source] io::Error),
    #[error("run the loop")]
    Loop(#[source] nix::Error),
}

pub(crate) fn serve(args: &Args) -> Result<(), ServeError> {
    let mut shim = set_up(args).inspect_err(|error| {
        // Nobody may be left to hear it.
        let _unheard = tell(&format!("failed to {}", crate::with_causes(error))).is_err();
    })?;
    tell_ready().map_err(ServeError::Ready).inspect_err(|_| shim.unlink_sockets())?;
    shim.run().map_err(ServeError::Loop)
}

fn set_up(args: &Args) -> Result<Shim, ServeError> {
    sys::give_memory_back();
    sys::keep_out_of_core_dumps();
    let socket = sys::inherited(args.socket_fd.ok_or(ServeError::NoSocket)?).map_err(ServeError::Socket)?;
    let listener = UnixListener::from(socket);
    listener.set_nonblocking(true).map_err(ServeError::Socket)?;
    // Fails only for a leader of its process group, which has a session of its own already.
    let _leads = setsid().is_err();
    prctl::set_child_subreaper(true).map_err(ServeError::Process)?;
    // A shim ends when its pod does: whoever stops the service manager's whole group must not take pods along.
    let signals = sys::handle_signals().map_err(ServeError::Process)?;
    oom_score::raise();
    let bundle = std::env::current_dir().map_err(ServeError::Bundle)?;
    let home = Home {
        address: args.address.clone(),
        namespace: args.namespace.clone(),
        bundle,
        events_address: events_address(&args.address),
        socket_path: socket_path(&listener),
    };
    Shim::new(home, listener, signals).map_err(ServeError::Loop)
}

fn events_address(address: &str) -> String {
    std::env::var("TTRPC_ADDRESS").ok().filter(|address| !address.is_empty()).unwrap_or_else(|| match address
    {
        "" => String::new(),
        address => format!("{address}.ttrpc"),
    })
}

fn socket_path(listener: &UnixListener) -> Option<PathBuf> {
    listener.local_addr().ok()?.as_pathname().map(ToOwned::to_owned)
}
