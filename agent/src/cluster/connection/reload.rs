//! A kubeconfig, and the certificates that it names, are read again when they have changed.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use kube::config::Kubeconfig;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::{ConnectError, unusable};
use crate::{
    causes::with_causes,
    cluster::{Clients, client::Connection},
};

/// How often files are looked at. Whoever changes certificates does so long before the old ones end.
const EVERY: Duration = Duration::from_secs(10);
/// What is read of a file: more than any certificate or kubeconfig has.
const BYTES_MAX: u64 = 4 << 20;

/// The longest pause between tries with the same content. What it is refused for may be elsewhere: a file of a plugin, or memory.
const AGAIN_MAX: Duration = Duration::from_secs(300);

/// What files hold.
pub(in crate::cluster) type Content = [u8; 32];

/// Has the clients replaced by what `connect` makes whenever the kubeconfig, or a file that it names, holds something else than what they
/// were made from. What is read wrong leaves the clients that there are. Runs until the agent stops.
pub(in crate::cluster) async fn follow<F>(clients: &Clients, kubeconfig: &Path, connect: impl Fn() -> F)
where
    F: Future<Output = Result<Connection, ConnectError>>,
{
    follow_every(EVERY, clients, kubeconfig, connect).await;
}

pub(super) async fn follow_every<F>(
    every: Duration,
    clients: &Clients,
    kubeconfig: &Path,
    connect: impl Fn() -> F,
) where
    F: Future<Output = Result<Connection, ConnectError>>,
{
    let mut refused: Option<Refused> = None;
    let mut told = None;
    loop {
        let looked = look(kubeconfig).await;
        tell(&mut told, looked.as_ref().err());
        if let Ok(now) = looked
            && clients.made_from() != Some(now)
        {
            let before = refused.take().filter(|refused| refused.content == now);
            if before.as_ref().is_some_and(|before| Instant::now() < before.again_at) {
                refused = before;
            } else {
                match connect().await {
                    Ok(connection) => {
                        tracing::info!(path = %kubeconfig.display(), "the kubeconfig, or what it names, has changed");
                        clients.replace(connection);
                    }
                    Err(error) => refused = Some(Refused::again(before, now, every, &error)),
                }
            }
        }
        tokio::time::sleep(every).await;
    }
}

/// Tells once why there is nothing to make clients from. A file that is being replaced may be missing for a moment.
fn tell(told: &mut Option<String>, error: Option<&io::Error>) {
    let error = error.filter(|error| error.kind() != io::ErrorKind::NotFound).map(|error| with_causes(error));
    if let Some(error) = error.as_ref().filter(|error| told.as_ref() != Some(*error)) {
        tracing::warn!(error, "the client that there is stays");
    }
    *told = error;
}

/// What no client could be made from.
struct Refused {
    content: Content,
    pause: Duration,
    again_at: Instant,
}

impl Refused {
    /// Once more: the error is told the first time.
    fn again(before: Option<Self>, content: Content, every: Duration, error: &ConnectError) -> Self {
        let error = with_causes(error);
        if before.is_none() {
            tracing::error!(error, "the client that there is stays; it is tried again");
        } else {
            tracing::debug!(error, "the client that there is stays");
        }
        let pause = before.map_or(every, |before| before.pause.saturating_mul(2)).min(AGAIN_MAX);
        Self { content, pause, again_at: Instant::now() + pause }
    }
}

/// What the kubeconfig and the files that it names hold.
pub(super) async fn look(kubeconfig: &Path) -> io::Result<Content> {
    let kubeconfig = kubeconfig.to_owned();
    let looked = tokio::task::spawn_blocking(move || content(&kubeconfig)).await;
    looked.unwrap_or_else(|_cancelled| Err(io::ErrorKind::Interrupted.into()))
}

fn content(kubeconfig: &Path) -> io::Result<Content> {
    let mut sum = Sha256::new();
    add(&mut sum, kubeconfig)?;
    let unusable = |error| io::Error::other(unusable(kubeconfig, error));
    let named = Kubeconfig::read_from(kubeconfig).map_err(unusable)?;
    let authorities =
        named.clusters.iter().filter_map(|one| one.cluster.as_ref()?.certificate_authority.as_ref());
    let users = named.auth_infos.iter().filter_map(|one| one.auth_info.as_ref());
    let pairs = users.flat_map(|user| [user.client_certificate.as_ref(), user.client_key.as_ref()]);
    for file in authorities.chain(pairs.flatten()).map(PathBuf::from) {
        // One that is being replaced may be missing for a moment.
        if add(&mut sum, &file).is_err() {
            sum.update("missing");
        }
    }
    Ok(sum.finalize().into())
}

fn add(sum: &mut Sha256, path: &Path) -> io::Result<()> {
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(fs::File::open(path)?, BYTES_MAX), &mut bytes)?;
    sum.update(bytes.len().to_le_bytes());
    sum.update(bytes);
    Ok(())
}
