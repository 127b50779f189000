"""What the tests of `ds4-quantize` share: running it, and a reader of GGUF files written independently of the program."""
import os
import resource
import struct
import subprocess
import tempfile
import unittest

QUANTIZE = os.environ.get("DS4_QUANTIZE_PROGRAM", "ds4-quantize")
DS4 = os.environ.get("DS4_PROGRAM", "ds4")
MODEL = os.environ.get("DS4_MODEL", "nano.gguf")
DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "nano")
TIMEOUT_S = 300
BLOCKS = {0: (1, 4), 1: (1, 2), 8: (32, 34), 10: (256, 84), 12: (256, 144), 16: (256, 66), 26: (1, 4), 30: (1, 2), 39: (32, 17)}
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


class Gguf:
    """Keys, and tensors as (type, dims, position of the data in the file, bytes)."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.bytes = file.read()
        self.at = 0
        magic, version, tensors, keys = self.take("<4sIQQ")
        assert (magic, version) == (b"GGUF", 3)
        self.keys = {}
        for _ in range(keys):
            key = self.text()
            assert key not in self.keys, key
            self.keys[key] = self.value(self.take("<I")[0])
        infos = []
        for _ in range(tensors):
            name, dims = self.text(), self.take("<I")[0]
            infos.append((name, self.take(f"<{dims}Q"), *self.take("<IQ")))
        start = (self.at + 31) // 32 * 32
        self.tensors = {}
        for name, dims, kind, offset in infos:
            elements, size = BLOCKS[kind]
            count = 1
            for dim in dims:
                count *= dim
            self.tensors[name] = (kind, dims, start + offset, count // elements * size)

    def take(self, form):
        values = struct.unpack_from(form, self.bytes, self.at)
        self.at += struct.calcsize(form)
        return values

    def text(self):
        length = self.take("<Q")[0]
        self.at += length
        return self.bytes[self.at - length:self.at].decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind != 9:
            return self.take(SCALARS[kind])[0]
        element, count = self.take("<IQ")
        return [self.value(element) for _ in range(count)]

    def data(self, name):
        _, _, begin, size = self.tensors[name]
        return self.bytes[begin:begin + size]


class QuantizeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, content):
        with open(self.path(name), "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        return self.path(name)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def names(self):
        return sorted(os.listdir(self.folder))

    def run_program(self, *arguments, largest_file=None):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
        return subprocess.run([QUANTIZE, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S,
                              preexec_fn=limit if largest_file else None)

    def good(self, *arguments):
        result = self.run_program(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def bad(self, status, pattern, *arguments, **more):
        result = self.run_program(*arguments, **more)
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertRegex(result.stderr, pattern)
        return result.stderr

    def make(self, recipe, name=None, source=MODEL):
        path = self.path(name or f"{recipe}.gguf")
        self.good("--gguf", source, "--recipe", recipe, "-o", path)
        return path
