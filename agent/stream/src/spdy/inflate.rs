//! Decompression of header blocks. All blocks of a connection are one zlib stream.

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_HAS_MORE_INPUT;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

use super::ConnectionError;
use super::dictionary::{DICTIONARY, DICTIONARY_ID};

/// How far back compressed bytes may point.
const WINDOW: usize = 32 << 10;

/// Bytes before the deflate stream: method, flags, and which dictionary it knows.
const HEAD: usize = 6;

/// Flag of the second byte: a dictionary is named.
const HAS_DICTIONARY: u8 = 0x20;

/// Deflate, the only method of zlib.
const METHOD: u8 = 8;

pub(super) struct Inflater {
    state: Box<DecompressorOxide>,
    /// What was decompressed last, and before it the dictionary; written around and around.
    window: Box<[u8]>,
    at: usize,
    /// Bytes of the stream's head that are still to come.
    head: Vec<u8>,
}

impl std::fmt::Debug for Inflater {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inflater").field("at", &self.at).finish_non_exhaustive()
    }
}

impl Default for Inflater {
    fn default() -> Inflater {
        let mut window = vec![0; WINDOW].into_boxed_slice();
        window[..DICTIONARY.len()].copy_from_slice(DICTIONARY);
        Inflater { state: Box::default(), window, at: DICTIONARY.len(), head: Vec::new() }
    }
}

impl Inflater {
    /// Decompresses a header block of `max` bytes at most.
    pub(super) fn block(&mut self, compressed: &[u8], max: usize) -> Result<Vec<u8>, ConnectionError> {
        let mut rest = self.after_head(compressed)?;
        let mut block = Vec::new();
        loop {
            let (status, read, written) =
                decompress(&mut self.state, rest, &mut self.window, self.at, TINFL_FLAG_HAS_MORE_INPUT);
            block.extend_from_slice(&self.window[self.at..self.at + written]);
            self.at = (self.at + written) % WINDOW;
            rest = &rest[read..];
            if block.len() > max {
                return Err(ConnectionError::HeaderBlock(max));
            }
            match status {
                TINFLStatus::HasMoreOutput => {}
                TINFLStatus::NeedsMoreInput if rest.is_empty() => return Ok(block),
                // The stream goes on for as long as the connection does.
                TINFLStatus::NeedsMoreInput
                | TINFLStatus::Done
                | TINFLStatus::Failed
                | TINFLStatus::BadParam
                | TINFLStatus::Adler32Mismatch
                | TINFLStatus::FailedCannotMakeProgress
                | _ => return Err(ConnectionError::Compression),
            }
        }
    }

    /// Takes the head of the stream, which is in the first block.
    fn after_head<'c>(&mut self, compressed: &'c [u8]) -> Result<&'c [u8], ConnectionError> {
        let (head, rest) = compressed.split_at((HEAD - self.head.len()).min(compressed.len()));
        if head.is_empty() {
            return Ok(rest);
        }
        self.head.extend_from_slice(head);
        if let [method, flags, id @ ..] = self.head.as_slice()
            && id.len() == DICTIONARY_ID.len()
        {
            let is_sum = (u16::from(*method) << 8 | u16::from(*flags)).is_multiple_of(31);
            let is_known = method & 0xf == METHOD && flags & HAS_DICTIONARY != 0 && id == DICTIONARY_ID;
            if !is_sum || !is_known {
                return Err(ConnectionError::Compression);
            }
        }
        Ok(rest)
    }
}

#[cfg(test)]
mod tests {
    use miniz_oxide::deflate::core::{CompressorOxide, create_comp_flags_from_zip_params};
    use miniz_oxide::deflate::stream::deflate;
    use miniz_oxide::{DataFormat, MZFlush};

    use super::*;

    #[test]
    fn blocks_point_back_to_earlier_ones() {
        let flags = create_comp_flags_from_zip_params(9, 0, 0);
        let mut compressor = CompressorOxide::new(flags);
        compressor.set_format_and_level(DataFormat::Raw, 9);
        let mut inflater = Inflater::default();
        let head = [&[0x78, 0xf9], DICTIONARY_ID.as_slice()].concat();
        let (mut written, mut read) = (0, 0);
        for number in 0..400_usize {
            let block: Vec<u8> =
                (0..1000 + number).map(|at| (at * at / (1 + number % 20)).to_le_bytes()[0]).collect();
            let mut out = vec![0; 4 << 10];
            let result = deflate(&mut compressor, &block, &mut out, MZFlush::Sync);
            assert_eq!(result.bytes_consumed, block.len());
            let prefix = if number == 0 { head.as_slice() } else { &[] };
            let compressed = [prefix, &out[..result.bytes_written]].concat();
            assert_eq!(inflater.block(&compressed, block.len()), Ok(block.clone()), "block {number}");
            written += compressed.len();
            read += block.len();
        }
        assert!(read > 10 * WINDOW && written < read / 2, "{written} bytes were {read}");
    }

    #[test]
    fn the_head_may_come_in_pieces() {
        let mut inflater = Inflater::default();
        for byte in [0x78, 0x20].into_iter().chain(DICTIONARY_ID) {
            assert_eq!(inflater.block(&[byte], 0), Ok(Vec::new()));
        }
        assert_eq!(inflater.block(b"\0\x01\0\xfe\xffa", 1), Ok(b"a".to_vec()));
        for head in [
            b"\x78\x21\xe3\xc6\xa7\xc2".as_slice(),
            b"\x78\x01\xe3\xc6\xa7\xc2",
            b"\x78\x20\xe3\xc6\xa7\xc3",
            b"\x77\x3f\xe3\xc6\xa7\xc2",
        ] {
            assert_eq!(Inflater::default().block(head, 9), Err(ConnectionError::Compression), "{head:?}");
        }
    }
}
