//! Header blocks as this end sends them: in the form of a zlib stream, not compressed.
//!
//! A server's replies have no headers, which are four bytes. A compressor would hold a quarter of a mebibyte for each
//! connection to save none of them.

use super::dictionary::DICTIONARY_ID;

/// Deflate with a window of 32 KiB; a dictionary is named, and the two bytes are a multiple of 31.
const HEAD: [u8; 2] = [0x78, 0x20];

/// An empty stored block, the end of a flush: Go's decompressor gives out what came before it only when it sees one, and
/// looks for more until then, which is an error for good.
const FLUSH: [u8; 5] = [0, 0, 0, 0xff, 0xff];

/// Most bytes of a stored block.
const STORED_MAX: usize = 0xffff;

/// The stream of a connection's header blocks.
#[derive(Debug, Default)]
pub(super) struct Deflater {
    is_begun: bool,
}

impl Deflater {
    pub(super) fn block(&mut self, block: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(block.len() + 16);
        if !std::mem::replace(&mut self.is_begun, true) {
            out.extend_from_slice(&HEAD);
            out.extend_from_slice(&DICTIONARY_ID);
        }
        for stored in block.chunks(STORED_MAX) {
            let len = u16::try_from(stored.len()).unwrap_or(u16::MAX);
            // Not the last block, stored; the rest of the byte is padding.
            out.push(0);
            out.extend_from_slice(&len.to_le_bytes());
            out.extend_from_slice(&(!len).to_le_bytes());
            out.extend_from_slice(stored);
        }
        out.extend_from_slice(&FLUSH);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::inflate::Inflater;
    use super::*;

    #[test]
    fn stored_blocks_are_what_a_decompressor_reads() {
        let mut deflater = Deflater::default();
        let mut inflater = Inflater::default();
        assert_eq!(
            deflater.block(b"\0\0\0\0"),
            b"\x78\x20\xe3\xc6\xa7\xc2\x00\x04\x00\xfb\xff\0\0\0\0\0\0\0\xff\xff",
            "the head is in the first block"
        );
        let mut deflater = Deflater::default();
        for len in [4, 0, 1, 40_000, 65_535, 65_536, 200_000] {
            let block: Vec<u8> =
                (0..len).map(|at: usize| at.to_le_bytes()[0] ^ at.to_le_bytes()[1]).collect();
            assert_eq!(inflater.block(&deflater.block(&block), len), Ok(block), "{len} bytes");
        }
    }
}
