//! What a pod's network namespace needs besides plugins, done by netlink instead of one more program.
//!
//! A namespace is entered by a thread of its own, which ends with the work and never runs anything else.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt, socket,
};
use nix::sys::time::TimeVal;

/// The index of `lo` in every network namespace: it is the first interface made.
const LOOPBACK_INDEX: u32 = 1;
/// Larger than any acknowledgement.
const REPLY_MAX: usize = 4096;
/// The kernel answers at once; this bounds the wait if it does not.
const REPLY_WAIT: Duration = Duration::from_secs(5);

/// Why a network namespace could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// It cannot be entered.
    #[error("cannot enter the network namespace {netns}")]
    Enter {
        /// Its path.
        netns: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// `lo` cannot be brought up.
    #[error("cannot bring up lo in the network namespace {netns}")]
    Loopback {
        /// Its path.
        netns: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Brings `lo` up, as the loopback plugin does. Blocks for well under a millisecond.
///
/// # Errors
/// The namespace cannot be entered, or the kernel refuses.
pub fn bring_up_loopback(netns: &Path) -> Result<(), NetnsError> {
    inside(netns, || {
        loopback_up().map_err(|source| NetnsError::Loopback { netns: netns.to_owned(), source })
    })?
}

/// Runs `work` in a network namespace, on a thread that ends with it.
fn inside<T: Send>(netns: &Path, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
    let failed = |source| NetnsError::Enter { netns: netns.to_owned(), source };
    let entered = || {
        setns(File::open(netns).map_err(failed)?, CloneFlags::CLONE_NEWNET)
            .map_err(|errno| failed(errno.into()))?;
        Ok(work())
    };
    thread::scope(|scope| {
        let worker =
            thread::Builder::new().name("netns".into()).spawn_scoped(scope, entered).map_err(failed)?;
        worker.join().map_err(|_panic| failed(io::Error::other("the thread panicked")))?
    })
}

fn loopback_up() -> io::Result<()> {
    let socket =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
    let wait = TimeVal::new(i64::try_from(REPLY_WAIT.as_secs()).map_err(io::Error::other)?, 0);
    setsockopt(&socket, ReceiveTimeout, &wait)?;
    let request = set_up_request();
    sendto(socket.as_raw_fd(), &request, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    acknowledged(&socket)
}

fn set_up_request() -> Vec<u8> {
    let mut link = LinkMessage::default();
    link.header.index = LOOPBACK_INDEX;
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    let mut message = NetlinkMessage::from(RouteNetlinkMessage::SetLink(link));
    message.header.flags = NLM_F_REQUEST | NLM_F_ACK;
    message.header.sequence_number = 1;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

fn acknowledged(socket: &OwnedFd) -> io::Result<()> {
    let mut reply = [0; REPLY_MAX];
    let length = recv(socket.as_raw_fd(), &mut reply, MsgFlags::empty())?;
    let reply = reply.get(..length).unwrap_or_default();
    match NetlinkMessage::<RouteNetlinkMessage>::deserialize(reply).map_err(io::Error::other)?.payload {
        NetlinkPayload::Error(error) if error.code.is_none() => Ok(()),
        NetlinkPayload::Error(error) => Err(error.to_io()),
        other => Err(io::Error::other(format!("the kernel answered with {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_sets_one_flag_of_interface_1() {
        // nlmsghdr: length 32, RTM_NEWLINK/RTM_SETLINK, REQUEST|ACK; ifinfomsg: index 1, flags UP, change UP.
        let bytes = set_up_request();
        assert_eq!(bytes.len(), 32);
        assert_eq!(u16::from_ne_bytes([bytes[4], bytes[5]]), libc::RTM_SETLINK);
        assert_eq!(bytes[20..32], [1_u32, 1, 1].map(u32::to_ne_bytes).concat());
    }

    #[test]
    fn a_path_that_is_no_namespace_is_named() {
        for path in ["/does/not/exist", "/proc/self/ns/uts", "/etc/passwd"] {
            let error = bring_up_loopback(Path::new(path)).unwrap_err();
            assert_eq!(error.to_string(), format!("cannot enter the network namespace {path}"));
        }
    }
}
