/* The runtime's headers include this one, which only nvcc's package holds. Nothing of it is needed here. */
