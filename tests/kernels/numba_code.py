"""numba's compiled kernels for tests, which would take ten seconds to compile them each."""

from pathlib import Path

from pagefleet_kernels.jit import NumbaLibrary, load_numba


def numba_from(cache: Path) -> NumbaLibrary:
    """Return the kernels of a folder that is kept between runs."""
    library = load_numba(cache)
    assert isinstance(library, NumbaLibrary), library.reason
    return library


def numba_alone(cache: Path, folder: Path) -> Path:
    """Give `folder` numba's code and not the C++ library; return it."""
    numba_from(cache)
    for code in cache.glob("numba-*"):
        (folder / code.name).symlink_to(code)
    return folder
