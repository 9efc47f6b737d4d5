"""Numbers that the paper prints, as data: table "Performance comparison on standard benchmarks", relative L2 errors."""

# model -> (Navier-Stokes, Darcy)
MAIN = {
    "FNO": (0.1556, 0.0108),
    "WMT": (0.1541, 0.0082),
    "U-FNO": (0.2231, 0.0183),
    "Geo-FNO": (0.1556, 0.0108),
    "U-NO": (0.1713, 0.0113),
    "F-FNO": (0.2322, 0.0077),
    "LSM": (0.1535, 0.0065),
    "Galerkin": (0.1401, 0.0084),
    "HT-Net": (0.1847, 0.0079),
    "OFormer": (0.1705, 0.0124),
    "GNOT": (0.1380, 0.0105),
    "FactFormer": (0.1214, 0.0109),
    "ONO": (0.1195, 0.0076),
    "Transolver": (0.0900, 0.0057),
    "GeoMaNO": (0.0370, 0.0036),
}

# Standard deviations of GeoMaNO over five runs, table "Error bounds".
DEVIATION = {"navier_stokes": 3.40e-3, "darcy": 1.17e-4}

# What a run must match for its number to stand beside the published one.
PROTOCOL = {
    "darcy": "85 x 85, 1000 training samples, 500 epochs",
    "navier_stokes": "64 x 64, 1000 training samples, 500 epochs",
}


def published(problem: str) -> dict[str, float]:
    """Published relative L2 of every model on a problem; empty for a problem that the paper does not have."""
    columns = {"navier_stokes": 0, "darcy": 1}
    if problem not in columns:
        return {}
    return {model: values[columns[problem]] for model, values in MAIN.items()}
