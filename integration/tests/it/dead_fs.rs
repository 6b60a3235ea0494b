//! File systems that do not answer: a FUSE server that ends its work after the first request, and a frozen disk.
//!
//! Both let go of everything when this process ends, or after [`LONGEST`]: what hangs in them can be ended by nothing else.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_integration::files;
use berth_integration::node::system;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// The longest a disk stays frozen, below the limit of a test.
const LONGEST: Duration = Duration::from_secs(120);

const INIT: u32 = 26;
/// `FUSE_MIN_READ_BUFFER` of Linux: a smaller buffer is refused.
const READ_MAX: usize = 8192;

/// What the server still does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    /// It takes requests and never answers: whoever asks cannot even be killed.
    Reads,
    /// It takes no more requests: whoever asks can be killed, and nothing else.
    Sleeps,
}

/// A FUSE file system whose server never answers again.
pub(crate) struct DeadFs {
    dir: PathBuf,
    reader: Option<JoinHandle<()>>,
    // Closed last: that lets go of all that hang.
    _device: File,
}

impl DeadFs {
    /// Mounts it on a new directory, which is an ordinary one again after [`DeadFs::release`].
    pub(crate) fn mount(dir: &Path, server: Server) -> Result<Self> {
        files::make_dir(dir)?;
        let mut device =
            OpenOptions::new().read(true).write(true).open("/dev/fuse").context("open /dev/fuse")?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("dead"), dir, Some("fuse"), flags, Some(options.as_str())).context("mount FUSE")?;
        greet(&mut device)?;
        let mut again = device.try_clone()?;
        let reader = (server == Server::Reads).then(|| {
            // Ends with an error when the file system is released.
            thread::spawn(move || while again.read(&mut [0; READ_MAX]).is_ok_and(|length| length > 0) {})
        });
        Ok(Self { dir: dir.to_owned(), reader, _device: device })
    }

    /// Lets go of all that hang in it, as does dropping it.
    pub(crate) fn release(mut self) -> Result<()> {
        self.unmount()
    }

    fn unmount(&mut self) -> Result<()> {
        // Ends the connection; a mount that is still in use goes only by the second.
        if umount2(&self.dir, MntFlags::MNT_FORCE).is_err() {
            umount2(&self.dir, MntFlags::MNT_DETACH).context("unmount FUSE")?;
        }
        self.reader.take().map_or(Ok(()), |reader| reader.join().ok().context("the server panicked"))
    }
}

impl Drop for DeadFs {
    fn drop(&mut self) {
        // Fails when it was released.
        drop(self.unmount());
    }
}

/// Answers the first request as Linux's `fuse_init_out` of protocol 7.31 wants it.
fn greet(device: &mut File) -> Result<()> {
    let mut request = [0; READ_MAX];
    let length = device.read(&mut request).context("read the first request")?;
    ensure!(length >= 40 && request[4..8] == INIT.to_ne_bytes(), "the first request is no INIT");
    let mut answer = Vec::new();
    let init: [u32; 16] = [7, 31, 4096, 0, 0x000c_0010, 4096, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    let whole = 16 + init.len() * 4;
    answer.extend(u32::try_from(whole)?.to_ne_bytes());
    answer.extend(0_i32.to_ne_bytes());
    answer.extend(&request[8..16]);
    init.iter().for_each(|word| answer.extend(word.to_ne_bytes()));
    device.write_all(&answer).context("answer the first request")
}

/// A disk of its own on a directory, which can be frozen.
pub(crate) struct Disk {
    dir: PathBuf,
    image: PathBuf,
}

impl Disk {
    /// Makes one and mounts it.
    pub(crate) fn mount(dir: &Path, image: &Path) -> Result<Self> {
        files::create(image)?.set_len(64 << 20)?;
        let text = |path: &Path| path.display().to_string();
        system("mkfs.ext4", &["-q", "-F", &text(image)])?;
        system("mount", &["-o", "loop", &text(image), &text(dir)])?;
        Ok(Self { dir: dir.to_owned(), image: image.to_owned() })
    }

    /// Lets nobody write until the guard is dropped.
    pub(crate) fn freeze(&self) -> Result<Frozen> {
        let dir = self.dir.display().to_string();
        system("fsfreeze", &["-f", &dir])?;
        let (thaw, waits) = sync_channel::<()>(0);
        let thread = thread::spawn(move || {
            // Told to by the end of the guard, or late.
            let _ended = waits.recv_timeout(LONGEST);
            drop(system("fsfreeze", &["-u", &dir]));
        });
        Ok(Frozen { thaw: Some(thaw), thread: Some(thread) })
    }

    /// Unmounts it, when nobody uses it any more.
    pub(crate) fn unmount(self) -> Result<()> {
        umount2(&self.dir, MntFlags::empty()).context("unmount the disk")?;
        files::remove(self.image)
    }
}

/// Thaws the disk when it is dropped.
pub(crate) struct Frozen {
    thaw: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Frozen {
    fn drop(&mut self) {
        drop(self.thaw.take());
        drop(self.thread.take().map(JoinHandle::join));
    }
}
